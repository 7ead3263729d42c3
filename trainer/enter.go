package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/member"
)

// defaultLease is how long a trainer may be silent before its job continues without it.
const defaultLease = 10 * time.Second

// Enter registers this process as a member of the job under the name worker, and sets its rank in c. Call it before
// [NewJob], and then [Job.RunOn], which leaves the job. An empty name means the name of the rank, if the rank is
// known.
//
// Errors: CodeInvalidArgument, with both values, if another trainer of the job has another configuration, or if all
// trainers are there; CodePrecondition while the job is being stopped.
func Enter(ctx context.Context, c *Config, cl *client.Client, worker string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	set, err := c.takeChecked()
	if err != nil {
		return err
	}
	saved, err := c.resume().FindSplits(ctx, cl)
	if err != nil {
		return err
	}
	divided, err := c.usesSplits(set, saved)
	if err != nil {
		return err
	}
	e := jobs.Entry{Job: c.Job, Worker: worker, Workers: c.Trainers, Settings: c.settings(), Rank: c.Rank,
		Lease: c.lease()}
	if c.Rank == nil && c.Trainers == 1 && (worker == "" || !divided) { // without a name, or no other worker may join
		e.Rank = new(int)
	}
	if e.Worker == "" && e.Rank != nil {
		e.Worker = fmt.Sprintf("rank-%d", *e.Rank)
	}
	e.Settings["splits"] = fmt.Sprint(divided)
	if n := set.TrainSize(); n > 0 {
		e.Settings["data.examples"] = fmt.Sprint(n)
	}
	if s := c.Data.shuffle(); s != "" {
		e.Settings["data.shuffle"] = s
	}
	if divided && (c.Audit || c.trainersKeepWeights()) {
		e.Settings["trainers"] = fmt.Sprint(c.Trainers) // audit rows and the addresses are for so many
	}
	if divided {
		e.Splits = c.splitPlan(set.TrainSize())
		e.Settings["epochs"] = fmt.Sprint(e.Splits.Epochs)
	}
	if c.usesSteps() {
		e.InShards, e.Gather, e.Deadline = true, true, c.Deadline
		if c.Mode == Sync {
			e.Quorum = c.Quorum
		}
	}
	e.BaseStep = saved.Step
	if e.Checkpoint = saved.ID; c.Resume == "" {
		e.Restart = !divided
	}
	if divided && saved.Resumes {
		e.From = saved.Splits
		if from := int64(e.From.SplitExamples); from%int64(c.Batch) == 0 { // another number of trainers resumes, too
			e.Splits.SplitExamples = from
		}
		if e.From.Examples != uint64(e.Splits.Examples) ||
			e.From.SplitExamples != uint64(e.Splits.SplitExamples) {
			return invalid("the data has %d examples in splits of %d, and had %d in splits of %d when the checkpoint "+
				"was made: resume with the same data and batch",
				e.Splits.Examples, e.Splits.SplitExamples, e.From.Examples, e.From.SplitExamples)
		}
	}
	m, err := member.Enter(ctx, c.lease(), c.again, func(ctx context.Context) (*jobs.Member,
		error) {
		return jobs.Enter(ctx, cl, e)
	})
	if err != nil {
		return err
	}
	if text := c.earlierRuns(ctx, cl, m); text != "" {
		c.continues = text
	}
	rank := m.Rank()
	if divided {
		c.Trainers = max(m.Workers, rank+1) // workers may have joined
	}
	c.Rank, c.member, c.set, c.splitData = &rank, m, set, divided
	return nil
}

// RunID returns the id of the run of the job that the trainer of c has entered, equal for all of its trainers; ""
// without a cluster.
func RunID(c *Config) string {
	if c.member == nil {
		return ""
	}
	id := c.member.Run()
	return fmt.Sprintf("%x", id[:4])
}

// CheckData refuses data that the job cannot train on, as [Enter] does: a file that is missing, a label that is not
// valid, or labels that are all 0. A stream is not opened. The next [Enter] does not read the data again.
func (c *Config) CheckData() (err error) {
	if c.Data.Follow == "" && c.checked == nil {
		c.checked, err = checkedData(c)
	}
	return err
}

// takeChecked returns the data set of CheckData, once, or opens and checks it.
func (c *Config) takeChecked() (set data.Set, err error) {
	if set, c.checked = c.checked, nil; set != nil {
		return set, nil
	}
	return checkedData(c)
}

// checkedData opens the data set of the job and refuses a file whose labels are all 0.
func checkedData(c *Config) (data.Set, error) {
	set, err := c.OpenData()
	if err != nil {
		return nil, err
	}
	return set, checkLabels(set)
}

// checkLabels refuses to train on files whose labels are all 0. A stream and a generator are not checked.
func checkLabels(set data.Set) error {
	if f, ok := set.(*data.Files); ok {
		return f.CheckLabels()
	}
	return nil
}

func (c *Config) lease() time.Duration {
	if c.Lease == 0 {
		return defaultLease
	}
	return c.Lease
}

// settings returns what all trainers of the job must agree on, by the names in the job's file.
func (c *Config) settings() map[string]string {
	text, err := json.Marshal(c.terms())
	if err != nil {
		panic(err) // impossible: Validate has checked that all numbers are finite
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err) // impossible: json.Marshal has just made it
	}
	out := make(map[string]string)
	flatten(out, "", tree)
	if c.Deadline > 0 {
		out["deadline"] = c.Deadline.String()
	}
	delete(out, "trainers") // the registry compares the number itself
	return out
}

func flatten(out map[string]string, prefix string, tree map[string]any) {
	for name, v := range tree {
		name = yamlName(name)
		switch v := v.(type) {
		case map[string]any:
			flatten(out, prefix+name+".", v)
		case string:
			if v != "" {
				out[prefix+name] = v
			}
		case nil:
		default:
			text, err := json.Marshal(v)
			if err != nil {
				panic(err) // impossible: it came from JSON
			}
			out[prefix+name] = string(text)
		}
	}
}

// yamlName returns the name of a field in a job's file: initial_accumulator for InitialAccumulator.
func yamlName(field string) string {
	var b strings.Builder
	for i, c := range field {
		if unicode.IsUpper(c) && i > 0 && unicode.IsLower(rune(field[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// Abandon reports that a registered trainer fails with err, unless that is reported already: the job then continues
// without it at once, and not when its lease expires.
func Abandon(ctx context.Context, c *Config, err error) {
	if c.member == nil || c.member.Left() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), member.LeavePatience)
	defer cancel()
	_ = c.member.Leave(ctx, jobs.LeaveFailed, err.Error(), nil)
}

// Lost reports whether the job continues without this trainer because it was silent for longer than its lease, and
// no other process has its place: then it may register again. It returns false if the trainer would train a fixed
// share once more from the beginning.
func Lost(ctx context.Context, c *Config) bool {
	if c.member == nil || ctx.Err() != nil || c.hasFixedShare() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	lost, err := c.member.Lost(ctx)
	return lost && err == nil
}

// hasFixedShare reports whether the trainer reads a fixed share of data that has an end, or of a stream.
func (c *Config) hasFixedShare() bool {
	return !c.splitData && (c.Data.Follow != "" || c.set == nil || c.set.TrainSize() > 0)
}

// Again returns the configuration with which a lost trainer registers again: c as it was before it registered, with
// the data divided as in the job. It does not resume from a checkpoint twice.
func Again(c, entered Config) Config {
	divided := entered.splitData
	c.Resume, c.Splits, c.again = "", &divided, true
	return c
}

// jobStopped ends a run whose job was stopped; reason is "" if an operator stopped it.
type jobStopped struct{ reason string }

func (s *jobStopped) Error() string { return "the job was stopped" }

// stopOf returns the stop of the job that ended ctx.
func stopOf(ctx context.Context) (*jobStopped, bool) {
	return errors.AsType[*jobStopped](context.Cause(ctx))
}

// beatRates turns counters into rates between two beats.
type beatRates struct {
	at             time.Time
	step, examples int64
	waited         time.Duration
}

var nan = math.NaN()

// beat returns the progress of this trainer for the scheduler. One goroutine at a time may call it.
func (j *Job) beat() jobs.Beat {
	p := j.report.Now()
	b := jobs.Beat{
		Step: p.Step, Examples: p.Examples, BatchesSkipped: p.BatchesSkipped,
		Loss: float64(p.Loss), AUC: float64(p.AUC), Stopping: j.stopping.Load(),
		StepsPerSecond: nan, ExamplesPerSecond: nan, StalenessSteps: float64(p.StalenessSteps), Waiting: nan,
		Splits: j.splits.Reached(),
	}
	now := time.Now()
	waited := j.report.Waiting(now)
	if last := j.beats; !last.at.IsZero() && now.After(last.at) {
		seconds := now.Sub(last.at).Seconds()
		b.StepsPerSecond = float64(p.Step-last.step) / seconds
		b.ExamplesPerSecond = float64(p.Examples-last.examples) / seconds
		b.Waiting = min(max((waited-last.waited).Seconds()/seconds, 0), 1)
	}
	j.beats = beatRates{now, p.Step, p.Examples, waited}
	return b
}

// splitsPerTrainer is the number of splits per trainer and epoch. After a death other trainers read at most one
// split again, and the last splits of an epoch keep every trainer busy.
const splitsPerTrainer = 8

// splitPlan returns the splits of the training examples. All trainers of a job compute the same plan.
func (c *Config) splitPlan(examples int64) jobs.SplitPlan {
	share := (examples + int64(c.Trainers)*splitsPerTrainer - 1) / (int64(c.Trainers) * splitsPerTrainer)
	batch := int64(c.Batch)
	p := jobs.SplitPlan{
		// A split is a whole number of batches, so that only the last batch of an epoch can be short.
		Examples: examples, SplitExamples: (share + batch - 1) / batch * batch, Epochs: int64(c.Epochs),
		ByRank: c.Mode == Sync && c.Quorum == 1 && c.Deadline == 0, InLog: c.usesSteps(),
	}
	if c.Epochs == 0 && c.Steps == 0 {
		p.Epochs = 1
	}
	return p
}

// usesSteps reports whether every shard knows the job's trainers.
func (c *Config) usesSteps() bool { return c.Mode == Sync || c.Mode == SSP }

// usesSplits reports whether the scheduler divides the data of the job. Each trainer reads a fixed share if it did
// so in the checkpoint that the run resumes from, and if the examples have no numbers.
func (c *Config) usesSplits(set data.Set, saved member.SavedSplits) (bool, error) {
	_, ranger := set.(data.Ranger)
	able := ranger && set.TrainSize() > 0
	switch {
	case c.Splits == nil && saved.Found:
		return able && saved.Splits != nil, nil
	case c.Splits == nil:
		return able, nil
	case *c.Splits && !able:
		return false, invalid("splits: %s cannot be divided by the scheduler, which needs a bounded data set that can "+
			"be read from any position", set.Name())
	case saved.Found && *c.Splits != (saved.Splits != nil):
		return *c.Splits, invalid("the data was divided differently when the checkpoint was made: splits is %v now",
			*c.Splits)
	}
	return *c.Splits, nil
}
