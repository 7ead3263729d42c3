package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/runs"
)

// runsOptions are the flags of runs and of the commands below it.
type runsOptions struct {
	dir    string
	format string
	out    string // the page's file
	yes    bool
}

func newRuns() *cobra.Command {
	o := new(runsOptions)
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List, compare, draw and remove the recorded training runs of a folder",
		Long: `Runs lists the runs that train --runs DIR, or runs: DIR in a job's file, has recorded in a folder, the newest last: their
state, start, time and score, and what --set changed. A run is named by its name, or by a begin of it that no other has.`,
		Example: "  rowraft-trainer runs\n  rowraft-trainer runs -o wide --runs /shared/runs",
		RunE:    o.list,
		Args:    cli.NoArgs,
	}
	o.addFlags(cmd, true)
	list := &cobra.Command{Use: "list", Short: "List the runs", Long: cmd.Long, Hidden: true, RunE: o.list,
		Args: cli.NoArgs, Example: "  rowraft-trainer runs list"}
	o.addFlags(list, true)
	compare := &cobra.Command{
		Use:   "compare RUN RUN...",
		Short: "Show the settings in which runs differ, and their scores",
		Long: `Compare shows the settings in which runs differ, as the job's file names them, and then their scores and speed. * marks the
best run of a line.`,
		Example: "  rowraft-trainer runs compare ctr-1a2b3c4d ctr-5e6f7081",
		RunE:    o.compare,
		Args:    atLeast(2),
	}
	o.addFlags(compare, true)
	page := &cobra.Command{
		Use:   "page RUN...",
		Short: "Write one HTML page with the curves of runs",
		Long: `Page writes the scores, settings and curves of runs to one HTML file, which needs no network. The trainer writes that of one
run when it ends, as page.html in the folder of the run. While a run is running the command may be repeated.`,
		Example: "  rowraft-trainer runs page ctr-1a2b3c4d ctr-5e6f7081 -o page.html",
		RunE:    o.page,
		Args:    atLeast(1),
	}
	o.addFlags(page, false)
	page.Flags().StringVarP(&o.out, "out", "o", "",
		"file of the page, which replaces an older one; default: page.html in the folder of the run, or in DIR for several")
	remove := &cobra.Command{
		Use:   "remove RUN...",
		Short: "Remove the records of runs",
		Long: `Remove lists the files of runs and asks before it removes them. It refuses a run that is running, and touches no other file
in the folder of a run. Tables and checkpoints of the job stay.`,
		Example: "  rowraft-trainer runs remove ctr-1a2b3c4d",
		RunE:    o.remove,
		Args:    atLeast(1),
	}
	o.addFlags(remove, false)
	remove.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.AddCommand(list, compare, page, remove)
	return cmd
}

// addFlags adds the folder, and the output format if the command prints something.
func (o *runsOptions) addFlags(cmd *cobra.Command, prints bool) {
	cmd.Flags().StringVar(&o.dir, "runs", defaultRuns, "folder of the runs")
	if prints {
		cmd.Flags().StringVarP(&o.format, "output", "o", cli.FormatTable, "how to print: table, wide, json or yaml")
	}
}

// atLeast refuses fewer runs than n.
func atLeast(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return cli.Usagef("runs %s: want the names of %s or more; `rowraft-trainer runs` lists them", cmd.Name(),
				cli.Plural(n, "run"))
		}
		return nil
	}
}

// open reads the runs of the arguments, each once. If they are needed, one that cannot be read is an error.
func (o *runsOptions) open(args []string, needed bool) (all []*runs.Run, err error) {
	seen := make(map[string]bool)
	for _, name := range args {
		r, err := runs.Open(o.dir, filepath.Base(filepath.Clean(name)))
		if err == nil && needed && len(r.Processes) == 0 {
			err = errors.Join(r.Errors...)
		}
		if err != nil {
			return nil, err
		}
		if !seen[r.Name] {
			all = append(all, r)
		}
		seen[r.Name] = true
	}
	return all, nil
}

// runJSON is a run in JSON.
type runJSON struct {
	Run         string            `json:"run"`
	Job         string            `json:"job"`
	State       runs.State        `json:"state"`
	Error       string            `json:"error,omitempty"`
	Started     time.Time         `json:"started"`
	Seconds     report.Number     `json:"seconds"`
	Batches     int64             `json:"batches"`
	Examples    int64             `json:"examples"`
	Loss        report.Number     `json:"training_loss"`
	Score       string            `json:"score,omitempty"` // AUC, log loss or RMSE
	Value       report.Number     `json:"value"`
	Fingerprint string            `json:"fingerprint"`
	Set         map[string]string `json:"set,omitempty"`
	Folder      string            `json:"folder"`
	Trainers    []trainerJSON     `json:"trainers"`
	Result      *report.Result    `json:"result,omitempty"`
}

// trainerJSON is a process of a run in JSON.
type trainerJSON struct {
	Rank    int        `json:"rank"`
	Host    string     `json:"host"`
	PID     int        `json:"pid"`
	State   runs.State `json:"state"`
	File    string     `json:"file"`
	Damaged int        `json:"damaged_lines,omitempty"`
}

// jsonOf returns a run for programs.
func jsonOf(r *runs.Run) runJSON {
	head, score := r.Head(), r.Score()
	j := runJSON{Run: r.Name, Job: head.Job, State: r.State(), Error: r.Error(), Started: head.Started,
		Seconds: report.Number(r.Duration().Seconds()), Loss: report.Number(lossOf(r)), Score: score.Name,
		Value: report.Number(score.Value), Fingerprint: head.Fingerprint, Set: head.Set, Folder: r.Dir, Result: r.Result(),
		Trainers: []trainerJSON{}}
	j.Batches, j.Examples = r.Totals()
	for _, p := range r.Processes {
		j.Trainers = append(j.Trainers, trainerJSON{p.Head.Rank, p.Head.Host, p.Head.PID, p.State, p.File, p.Damaged})
	}
	return j
}

func lossOf(r *runs.Run) float64 {
	if c := r.Curve(2); len(c) > 0 {
		return c[len(c)-1].Loss
	}
	return math.NaN()
}

func (o *runsOptions) list(cmd *cobra.Command, _ []string) error {
	if err := cli.CheckFormat(o.format); err != nil {
		return err
	}
	all, err := runs.List(o.dir)
	if err != nil {
		return err
	}
	out := struct {
		Schema string    `json:"schema"`
		Runs   []runJSON `json:"runs"`
	}{cli.JSONSchema, []runJSON{}}
	for _, r := range all {
		out.Runs = append(out.Runs, jsonOf(r))
	}
	return cli.Show(cmd.OutOrStdout(), o.format, out, func(w io.Writer, wide bool) error {
		if len(all) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s has no runs: `rowraft-trainer train --runs %s` records one\n", o.dir, o.dir)
			return nil
		}
		t := cli.NewTable(w, wide, []string{"RUN", "STATE", "STARTED", "TIME", "BATCHES", "EXAMPLES", "LOSS", "SCORE", "HOST",
			"SET"}, "TIME", "BATCHES", "EXAMPLES", "LOSS").OnlyWide("BATCHES", "EXAMPLES", "LOSS", "HOST")
		for i, r := range all {
			j := out.Runs[i]
			loss, score := "-", r.Score().String()
			if v := float64(j.Loss); !math.IsNaN(v) {
				loss = fmt.Sprintf("%.4f", v)
				if j.Score == "" {
					score = "loss " + loss
				}
			}
			set, started := r.Set(), j.Started.Local().Format("01-02 15:04")
			if j.State == runs.Unreadable {
				set, started = j.Error, "-"
			}
			t.AppendRow(table.Row{r.Name, j.State, started, span(r.Duration()),
				cli.Count(uint64(max(j.Batches, 0))), cli.Count(uint64(max(j.Examples, 0))), loss, score,
				r.Head().Host, set})
		}
		t.Render()
		return nil
	})
}

// span formats a duration in two units at most: 12s, 3m20s, 5h02m, 3d04h.
func span(d time.Duration) string {
	s := int64(d.Round(time.Second).Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
}

// comparedJSON is a setting or a measure of several runs in JSON.
type comparedJSON struct {
	Name   string `json:"name"`
	Values []any  `json:"values"` // in the order of the runs
}

func (o *runsOptions) compare(cmd *cobra.Command, args []string) error {
	if err := cli.CheckFormat(o.format); err != nil {
		return err
	}
	all, err := o.open(args, true)
	if err != nil {
		return err
	}
	settings, measures := runs.Compare(all), runs.Measures(all)
	out := struct {
		Schema   string         `json:"schema"`
		Runs     []string       `json:"runs"`
		Settings []comparedJSON `json:"settings"`
		Measures []comparedJSON `json:"measures"`
	}{Schema: cli.JSONSchema, Settings: []comparedJSON{}, Measures: []comparedJSON{}}
	header := []string{""}
	for _, r := range all {
		out.Runs = append(out.Runs, r.Name)
		header = append(header, r.Name)
	}
	for _, d := range settings {
		c := comparedJSON{Name: d.Name}
		for _, v := range d.Values {
			c.Values = append(c.Values, v)
		}
		out.Settings = append(out.Settings, c)
	}
	for _, m := range measures {
		c := comparedJSON{Name: m.Name}
		for _, v := range m.Values {
			c.Values = append(c.Values, report.Number(v))
		}
		out.Measures = append(out.Measures, c)
	}
	return cli.Show(cmd.OutOrStdout(), o.format, out, func(w io.Writer, wide bool) error {
		t := cli.NewTable(w, wide, header)
		row := func(name string, cell func(i int) string) {
			cells := table.Row{name}
			for i := range all {
				cells = append(cells, cell(i))
			}
			t.AppendRow(cells)
		}
		row("state", func(i int) string { return string(all[i].State()) })
		for _, d := range settings {
			row(d.Name, func(i int) string { return orDash(d.Values[i]) })
		}
		for _, m := range measures {
			row(m.Name, func(i int) string {
				text := runs.Number(m.Values[i], m.Format)
				if i == m.Best {
					text += " *"
				}
				return text
			})
		}
		t.Render()
		return nil
	})
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (o *runsOptions) page(cmd *cobra.Command, args []string) error {
	all, err := o.open(args, true)
	if err != nil {
		return err
	}
	path := o.out
	if path == "" {
		path = filepath.Join(o.dir, runs.PageName)
		if len(all) == 1 {
			path = filepath.Join(all[0].Dir, runs.PageName)
		}
	}
	if path == "-" {
		return runs.WritePage(cmd.OutOrStdout(), all, time.Now())
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return cli.Usagef("--out %s: %w", path, err)
	}
	if err := runs.SavePage(path, all); err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
	return err
}

func (o *runsOptions) remove(cmd *cobra.Command, args []string) error {
	var list strings.Builder
	all, err := o.open(args, false)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.State() == runs.Running {
			return cli.Refused(fmt.Errorf("run %s is running: stop it first; nothing was removed", r.Name))
		}
		own, bytes, other, err := r.Files()
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "  %s: %s, %s (%s)", r.Dir, cli.Plural(len(own), "file"), cli.Size(uint64(bytes)), r.State())
		if len(other) > 0 {
			fmt.Fprintf(&list, "; other files stay: %s", strings.Join(other, ", "))
		}
		list.WriteByte('\n')
	}
	if !o.yes {
		answer := all[0].Name
		if len(all) > 1 {
			answer = fmt.Sprint(len(all))
		}
		what := "the run's name"
		if len(all) > 1 {
			what = "the number of runs, " + answer + ","
		}
		if err := cli.Confirm(cmd, fmt.Sprintf("These records will be removed:\n%sType %s to remove them: ", &list, what),
			answer); err != nil {
			return err
		}
	}
	for _, r := range all {
		if err := r.Remove(); err != nil {
			return err
		}
	}
	if o.yes {
		fmt.Fprintf(cmd.ErrOrStderr(), "removed:\n%s", &list)
	}
	return nil
}
