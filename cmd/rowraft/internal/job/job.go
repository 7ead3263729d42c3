package job

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// NewCmd returns the command `rowraft job`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "Training jobs: their workers, their progress, how to stop them",
	}
	cmd.AddCommand(newJobListCmd(g), newJobDescribeCmd(g), newJobWatchCmd(g), newJobStopCmd(g), newJobDeleteCmd(g))
	return cmd
}

// Job is one job in the JSON output of all commands. Unknown numbers are null.
type Job struct {
	Name        string            `json:"name"`
	State       string            `json:"state"` // running, stopping, stopped, done, failed
	Reason      string            `json:"reason"`
	Run         string            `json:"run"`
	Workers     uint32            `json:"workers"` // expected
	Training    int               `json:"training"`
	Generation  uint64            `json:"generation"`
	LeaseSecs   float64           `json:"lease_seconds"`
	Settings    map[string]string `json:"settings"`
	Data        *jobDataJSON      `json:"data"` // null: the trainers divide the data themselves
	StepsPerSec *float64          `json:"steps_per_second"`
	ExamplesSec *float64          `json:"examples_per_second"`
	Scores      *scoresJSON       `json:"scores,omitempty"`
	Members     []memberJSON      `json:"members"` // by rank
}

// scoresJSON are the scores of held-out examples in a run.
type scoresJSON struct {
	Metric     string  `json:"metric"`
	Best       float64 `json:"best"`
	Step       uint64  `json:"step"`                 // the step of the worker that scored
	Checkpoint string  `json:"checkpoint,omitempty"` // DESTINATION/NAME of the best score
	Saved      string  `json:"saved,omitempty"`      // the last checkpoint, if the best score has none
	Since      uint32  `json:"since_best"`           // scores after the best one
}

type jobDataJSON struct {
	Examples      uint64   `json:"examples"` // of an epoch
	SplitExamples uint64   `json:"split_examples"`
	Splits        uint64   `json:"splits"`
	Epochs        uint64   `json:"epochs"`        // 0: no end
	Epoch         uint64   `json:"epoch"`         // the epoch of the next split
	Given         uint64   `json:"given"`         // splits of that epoch that were assigned
	Open          []uint64 `json:"open"`          // splits that a worker has
	Back          []uint64 `json:"back"`          // splits that were returned and are assigned next
	BackExamples  uint64   `json:"back_examples"` // of those splits, not trained yet
	AgainAtLeast  uint64   `json:"read_again_at_least"`
	AgainAtMost   uint64   `json:"read_again_at_most"`
}

type memberJSON struct {
	Rank        uint32   `json:"rank"`
	Worker      string   `json:"worker"`
	State       string   `json:"state"` // training, ended, stopped, lost, failed
	Reason      string   `json:"reason"`
	Incarnation uint64   `json:"incarnation"`
	Connected   bool     `json:"connected"`
	HeardSecs   *float64 `json:"heard_seconds_ago"`
	Step        *uint64  `json:"step"`
	Examples    *uint64  `json:"examples"`
	StepsPerSec *float64 `json:"steps_per_second"`
	ExamplesSec *float64 `json:"examples_per_second"`
	Loss        *float64 `json:"loss"`
	AUC         *float64 `json:"auc"`
	Staleness   *float64 `json:"staleness_steps"`
	Waiting     *float64 `json:"waiting"` // share of its time
	Skipped     *uint64  `json:"batches_skipped"`
}

// known returns nil for a number that the worker did not report.
func known(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

func newTrainingJSON(j *rowraftv1.JobInfo) Job {
	v := Job{
		Name: j.GetJob(), State: view.Word(j.GetState().String(), "JOB_STATE_"), Reason: j.GetReason(),
		Run:     hex.EncodeToString(j.GetRun()),
		Workers: j.GetWorkers(), Generation: j.GetGeneration(), LeaseSecs: time.Duration(j.GetLeaseNs()).Seconds(),
		Settings: map[string]string{}, Members: []memberJSON{},
	}
	if j.GetStopping() {
		v.State = "stopping"
	}
	for _, s := range j.GetSettings() {
		v.Settings[s.GetName()] = s.GetValue()
	}
	if d := j.GetData(); d.GetExamples() > 0 {
		v.Data = newJobDataJSON(d)
	}
	if s := j.GetScores(); s.GetBest() != nil {
		v.Scores = &scoresJSON{Metric: s.GetBest().GetMetric(), Best: s.GetBest().GetValue(), Step: s.GetBest().GetStep(),
			Checkpoint: s.GetBest().GetCheckpoint(), Since: s.GetSinceBest()}
		if v.Scores.Checkpoint == "" {
			v.Scores.Saved = s.GetSaved().GetCheckpoint()
		}
	}
	steps, examples := math.NaN(), math.NaN()
	for _, m := range j.GetMembers() {
		one := newMemberJSON(m)
		v.Members = append(v.Members, one)
		if one.State == "training" {
			v.Training++
		}
		steps, examples = plus(steps, one.StepsPerSec), plus(examples, one.ExamplesSec)
	}
	v.StepsPerSec, v.ExamplesSec = known(steps), known(examples)
	return v
}

// plus adds f to sum. nil and NaN mean unknown.
func plus(sum float64, f *float64) float64 {
	switch {
	case f == nil:
		return sum
	case math.IsNaN(sum):
		return *f
	}
	return sum + *f
}

func newJobDataJSON(d *rowraftv1.JobData) *jobDataJSON {
	v := &jobDataJSON{
		Examples: d.GetExamples(), SplitExamples: d.GetSplitExamples(),
		Splits: (d.GetExamples() + d.GetSplitExamples() - 1) / max(d.GetSplitExamples(), 1),
		Epochs: d.GetEpochs(), Epoch: d.GetEpoch(), Given: d.GetSplit(), Open: []uint64{}, Back: []uint64{},
		AgainAtLeast: d.GetAgainKnown(), AgainAtMost: d.GetAgainMost(),
	}
	for _, p := range d.GetOpen() {
		if p.GetIncarnation() == 0 {
			v.Back = append(v.Back, p.GetSplit())
			from := p.GetSplit() * v.SplitExamples
			v.BackExamples += min(v.SplitExamples, v.Examples-min(from, v.Examples)) - min(p.GetOffset(), v.SplitExamples)
		} else {
			v.Open = append(v.Open, p.GetSplit())
		}
	}
	return v
}

func newMemberJSON(m *rowraftv1.MemberInfo) memberJSON {
	v := memberJSON{
		Rank: m.GetMember().GetRank(), Worker: m.GetMember().GetWorker(), State: view.Word(m.GetMember().GetState().String(),
			"MEMBER_STATE_"),
		Reason: m.GetMember().GetReason(), Incarnation: m.GetMember().GetIncarnation(), Connected: m.GetConnected(),
	}
	if ns := m.GetSinceHeardNs(); ns > 0 {
		v.HeardSecs = known(time.Duration(ns).Seconds())
	}
	if b := m.GetBeat(); b != nil {
		v.Step, v.Examples, v.Skipped = &b.Step, &b.Examples, &b.BatchesSkipped
		v.StepsPerSec, v.ExamplesSec, v.Loss, v.AUC = known(b.GetStepsPerSecond()), known(b.GetExamplesPerSecond()),
			known(b.GetLoss()), known(b.GetAuc())
		v.Staleness, v.Waiting = known(b.GetStalenessSteps()), known(b.GetWaiting())
	}
	return v
}

func describeJob(ctx context.Context, g *remote.Flags, name string) (*rowraftv1.JobInfo, error) {
	reply, err := remote.Call(ctx, g, route.Control, rowraftv1.NewJobsClient, rowraftv1.JobsClient.DescribeJob,
		&rowraftv1.DescribeJobRequest{Job: name})
	return reply.GetJob(), err
}

func newJobListCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the jobs",
		Example: "  rowraft job list -o wide",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Schema string `json:"schema"`
				Jobs   []Job  `json:"jobs"`
			}{cli.JSONSchema, []Job{}}
			reply, err := remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewJobsClient, rowraftv1.JobsClient.ListJobs,
				&rowraftv1.ListJobsRequest{})
			if err != nil {
				return err
			}
			for _, j := range reply.GetJobs() {
				v.Jobs = append(v.Jobs, newTrainingJSON(j))
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
				return listJobs(w, v.Jobs, wide)
			})
		},
	}
}

func listJobs(w io.Writer, jobs []Job, wide bool) error {
	if len(jobs) == 0 {
		_, err := fmt.Fprintln(w, "no jobs; one begins with its first `rowraft-trainer train`")
		return err
	}
	header := []string{"JOB", "STATE", "MODE", "WORKERS", "EPOCH", "STEPS/S", "EXAMPLES/S"}
	if wide {
		header = append(header, "GENERATION", "RUN", "REASON")
	}
	t := cli.NewTable(w, wide, header, "WORKERS", "EPOCH", "STEPS/S", "EXAMPLES/S", "GENERATION")
	for _, j := range jobs {
		row := table.Row{j.Name, j.State, j.Settings["mode"], fmt.Sprintf("%d/%d", j.Training, j.Workers), j.Data.progress(),
			figure(j.StepsPerSec, 1), figure(j.ExamplesSec, 0)}
		if wide {
			row = append(row, j.Generation, j.Run, j.Reason)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

// progress returns how many epochs were trained, with the splits that workers have as a whole.
func (d *jobDataJSON) progress() string {
	if d == nil {
		return "-"
	}
	given := d.Epoch*d.Examples + min(d.Given*d.SplitExamples, d.Examples)
	if d.Epochs > 0 {
		given = min(given, d.Epochs*d.Examples)
	}
	// Rounded down: 1.00/1 means the whole epoch.
	s := fmt.Sprintf("%.2f", math.Floor(100*float64(given-d.BackExamples)/float64(max(d.Examples, 1)))/100)
	if d.Epochs > 0 {
		s += fmt.Sprintf("/%d", d.Epochs)
	}
	return s
}

func figure(f *float64, digits int) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, *f)
}

func newJobDescribeCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "describe NAME",
		Short:   "Show a job with its settings, its data and its workers",
		Example: "  rowraft job describe ctr -o yaml",
		Args:    cli.OneArg("the NAME of the job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := describeJob(cmd.Context(), g, args[0])
			if err != nil {
				return err
			}
			return showJob(g, cmd, newTrainingJSON(j))
		},
	}
}
