package hot

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

func (v *keysJSON) print(w io.Writer, wide bool) error {
	if v.Rows == 0 {
		return nothing(w, v.Silent)
	}
	skew := "unknown: too few accesses, or no key has much more than the others"
	if v.Zipf > 0 {
		skew = fmt.Sprintf("about Zipf %.2f, by the hottest keys", v.Zipf)
	}
	if err := cli.Facts(w, "ACCESSES", rate(v.Rows)+" rows/s, over "+over(v.OverSeconds), "SKEW", skew); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := cli.NewTable(w, wide, []string{"KEY", "SHARD", "LEADER", "ROWS/s", "SHARE", "BETWEEN", "TABLE"}, "KEY", "SHARD",
		"ROWS/s", "SHARE", "BETWEEN")
	for _, k := range v.Keys {
		leader := k.Leader
		if leader == "" {
			leader = "-"
		}
		t.AppendRow(table.Row{k.Key, k.Shard, leader, rate(k.Rows), percent(k.Share),
			fmt.Sprintf("%.1f–%.1f %%", 100*k.Low, 100*k.High), k.Table})
	}
	t.Render()
	fmt.Fprintln(w)
	printCurve(w, v.Curve)
	return silent(w, v.Silent)
}

// curveWidth is the length of the bar of all accesses.
const curveWidth = 54

func printCurve(w io.Writer, points []point) {
	fmt.Fprintf(w, "%8s  %8s\n", "KEYS", "RECEIVE")
	for _, p := range points {
		fmt.Fprintf(w, "%8s  %8s  %s\n", cli.Count(uint64(p.Keys)), percent(p.Share), bar(p.Share, curveWidth))
	}
}

// bar draws a share in eighths of a character.
func bar(share float64, width int) string {
	eighths := int(math.Round(share * float64(width) * 8))
	part := ""
	if rest := eighths % 8; rest > 0 {
		part = string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return strings.Repeat("█", eighths/8) + part
}

// Summary returns the skew of a cluster in one line, "" without accesses.
func Summary(ctx context.Context, g *remote.Flags) (string, error) {
	seen, err := ask(ctx, g, "", maxKeys)
	if err != nil {
		return "", err
	}
	v := newKeys(seen, 1)
	var parts []string
	for _, p := range v.Curve {
		if p.Keys == 1 || p.Keys == 10 || p.Keys == 100 || p.Keys == 1000 {
			parts = append(parts, fmt.Sprintf("%s %s", cli.Plural(p.Keys, "key"), percent(p.Share)))
		}
	}
	if len(parts) == 0 {
		return "", nil
	}
	return "share of the rows pulled and pushed, each once in a batch: hottest " + strings.Join(parts, ", "), nil
}

func (v *shardsJSON) print(w io.Writer, wide bool) error {
	if v.MaxOverMean == 0 {
		return nothing(w, v.Silent)
	}
	t := cli.NewTable(w, wide, []string{"SHARD", "PULLED/s", "PUSHED/s", "SHARE", "BY"}, "SHARD", "PULLED/s", "PUSHED/s",
		"SHARE")
	for _, s := range v.Shards {
		var by []string
		for _, x := range s.By {
			mark := ""
			if x.Leads > 0 {
				mark = "*"
			}
			if x.rows() > 0 || mark != "" {
				by = append(by, fmt.Sprintf("%s%s %.0f %%", x.Server, mark, 100*x.Share))
			}
		}
		t.AppendRow(table.Row{s.Shard, rate(s.Pulled), rate(s.Pushed), percent(s.Share), strings.Join(by, ", ")})
	}
	t.Render()
	fmt.Fprintln(w)
	t = cli.NewTable(w, wide, []string{"SERVER", "LEADS", "PULLED/s", "PUSHED/s", "SHARE", "LOAD"}, "LEADS", "PULLED/s",
		"PUSHED/s", "SHARE")
	for _, s := range v.Servers {
		t.AppendRow(table.Row{s.Server, s.Leads, rate(s.Pulled), rate(s.Pushed), percent(s.Share), bar(s.Share, 30)})
	}
	t.Render()
	fmt.Fprintf(w, "\nThe most loaded server has %.2f times the mean, over %s.\n", v.MaxOverMean, over(v.OverSeconds))
	return silent(w, v.Silent)
}

func nothing(w io.Writer, without []string) error {
	if _, err := fmt.Fprintln(w, "No row was pulled or pushed in the last minutes."); err != nil {
		return err
	}
	return silent(w, without)
}

// silent names the servers that did not answer.
func silent(w io.Writer, servers []string) error {
	if len(servers) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nWithout %s, no answer: %s\n", cli.Plural(len(servers), "server"),
		strings.Join(servers, "; "))
	return err
}

// rate formats rows per second.
func rate(perSecond float64) string {
	if perSecond < 10 {
		return fmt.Sprintf("%.1f", perSecond)
	}
	return cli.Count(uint64(perSecond + 0.5))
}

func over(seconds float64) string { return fmt.Sprintf("about %.0f s", max(seconds, 1)) }
