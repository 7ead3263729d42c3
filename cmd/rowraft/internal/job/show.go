package job

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

// showJob prints one job.
func showJob(g *remote.Flags, cmd *cobra.Command, j Job) error {
	v := struct {
		Schema string `json:"schema"`
		Job    Job    `json:"job"`
	}{cli.JSONSchema, j}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		if err := jobFacts(w, j); err != nil {
			return err
		}
		if len(j.Members) == 0 {
			return nil
		}
		fmt.Fprintln(w)
		return listMembers(w, j.Members, wide)
	})
}

func jobFacts(w io.Writer, j Job) error {
	pairs := []string{"job", j.Name, "state", j.State}
	if j.Reason != "" {
		pairs = append(pairs, "because", j.Reason)
	}
	pairs = append(pairs, "workers", fmt.Sprintf("%d of %d train, generation %d", j.Training, j.Workers, j.Generation),
		"lease", fmt.Sprintf("%gs", j.LeaseSecs), "speed", fmt.Sprintf("%s steps/s, %s examples/s", figure(j.StepsPerSec, 1),
			figure(j.ExamplesSec, 0)))
	if d := j.Data; d != nil {
		pairs = append(pairs, "data", fmt.Sprintf("%s examples in %d splits, epoch %s", cli.Count(d.Examples), d.Splits,
			d.progress()),
			"open splits", fmt.Sprintf("%d with workers, %d to be given again", len(d.Open), len(d.Back)))
		if d.AgainAtMost > 0 {
			pairs = append(pairs, "read again", d.again())
		}
	} else {
		pairs = append(pairs, "data", "each worker reads its share")
	}
	if s := j.Scores; s != nil {
		pairs = append(pairs, "best score", fmt.Sprintf("%s %.4f after step %d, %d scores ago", s.Metric, s.Best, s.Step,
			s.Since))
		if path := cmp.Or(s.Checkpoint, s.Saved); path != "" {
			pairs = append(pairs, "saved in", path)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.Settings)) {
		pairs = append(pairs, name, j.Settings[name])
	}
	return cli.Facts(w, pairs...)
}

// again describes how many examples were read more than once.
func (d *jobDataJSON) again() string {
	if d.AgainAtLeast == d.AgainAtMost {
		return cli.Count(d.AgainAtMost) + " examples"
	}
	return fmt.Sprintf("%s to %s examples", cli.Count(d.AgainAtLeast), cli.Count(d.AgainAtMost))
}

func listMembers(w io.Writer, members []memberJSON, wide bool) error {
	header := []string{"RANK", "WORKER", "STATE", "STEP", "STEPS/S", "EXAMPLES/S", "LOSS", "AUC", "STALENESS", "WAITING"}
	if wide {
		header = append(header, "EXAMPLES", "SKIPPED", "INCARNATION", "HEARD", "REASON")
	}
	right := slices.DeleteFunc(slices.Clone(header), func(h string) bool {
		return h == "WORKER" || h == "STATE" || h == "REASON"
	})
	t := cli.NewTable(w, wide, header, right...).OnlyWide("EXAMPLES/S", "STALENESS")
	for _, m := range members {
		row := table.Row{m.Rank, m.Worker, m.State, whole(m.Step), figure(m.StepsPerSec, 1), figure(m.ExamplesSec, 0),
			figure(m.Loss, 4), figure(m.AUC, 4), figure(m.Staleness, 1), percent(m.Waiting)}
		if wide {
			heard := "-"
			if m.HeardSecs != nil {
				heard = fmt.Sprintf("%.1fs ago", *m.HeardSecs)
			}
			row = append(row, whole(m.Examples), whole(m.Skipped), m.Incarnation, heard, m.Reason)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

func whole(n *uint64) string {
	if n == nil {
		return "-"
	}
	return cli.Count(*n)
}

func percent(f *float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100**f)
}
