package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/mode"
)

// defaultLease is how long a worker may be silent before its job continues without it.
const defaultLease = 10 * time.Second

// Enter registers this process as a member of the job under the name worker, and sets its rank in c. Call it before
// [NewJob], and then [Job.RunOn], which leaves the job. An empty name means the name of the rank, if the rank is
// known.
//
// Errors: CodeInvalidArgument, with both values, if another worker of the job has another configuration, or if all
// workers are there; CodePrecondition while the job is being stopped.
func Enter(ctx context.Context, c *Config, cl *client.Client, worker string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	set, err := c.OpenData()
	if err != nil {
		return err
	}
	saved, err := c.findSplits(ctx, cl)
	if err != nil {
		return err
	}
	parted, err := c.usesSplits(set, saved)
	if err != nil {
		return err
	}
	e := client.Entry{Job: c.Job, Worker: worker, Workers: c.Trainers, Settings: c.settings(), Rank: c.Rank,
		Lease: c.lease()}
	if c.Rank == nil && c.Trainers == 1 {
		e.Rank = new(int)
	}
	if e.Worker == "" && e.Rank != nil {
		e.Worker = fmt.Sprintf("rank-%d", *e.Rank)
	}
	e.Settings["parts"] = fmt.Sprint(parted)
	if n := set.TrainSize(); n > 0 {
		e.Settings["data.examples"] = fmt.Sprint(n)
	}
	if parted {
		e.Parts = c.partPlan(set.TrainSize())
		e.Settings["epochs"] = fmt.Sprint(e.Parts.Epochs)
	}
	if c.usesSteps() {
		e.InShards, e.Gather, e.Deadline = true, true, c.Deadline
		if c.Mode == Sync {
			e.Quorum = c.Quorum
		}
	}
	e.BaseStep = saved.step
	if e.Checkpoint = saved.id; c.Resume == "" {
		e.Restart = !parted
	}
	if parted && saved.resumes {
		if e.From = saved.parts; e.From.Examples != uint64(e.Parts.Examples) ||
			e.From.PartExamples != uint64(e.Parts.PartExamples) {
			return invalid("the data has %d examples in parts of %d, and had %d in parts of %d when the checkpoint "+
				"was made: resume with the same data, trainers and batch",
				e.Parts.Examples, e.Parts.PartExamples, e.From.Examples, e.From.PartExamples)
		}
	}
	m, err := c.enterRestarted(ctx, func(ctx context.Context) (*client.Member, error) { return cl.EnterJob(ctx, e) })
	if err != nil {
		return err
	}
	rank := m.Rank()
	c.Rank, c.member, c.set, c.splitData = &rank, m, set, parted
	return nil
}

// restartPoll is how often a worker whose job is done without it checks whether other workers have started the job
// again.
const restartPoll = 250 * time.Millisecond

// enterRestarted calls enter. If the job is done without this worker it tries again for a lease: other workers that
// start the job once more may come a moment later. A process that was lost from that run itself does not wait.
func (c *Config) enterRestarted(ctx context.Context,
	enter func(context.Context) (*client.Member, error)) (*client.Member, error) {
	over := time.NewTimer(c.lease())
	defer over.Stop()
	tick := time.NewTicker(restartPoll)
	defer tick.Stop()
	for {
		m, err := enter(ctx)
		if !errors.Is(err, client.ErrJobDone) || c.again {
			return m, err
		}
		select {
		case <-tick.C:
		case <-over.C:
			return m, err
		case <-ctx.Done():
			return m, err
		}
	}
}

// savedSplits is what a checkpoint has about data that the scheduler divides.
type savedSplits struct {
	id      string            // the checkpoint that the cluster's tables come from; "": none, or not needed
	found   bool              // a checkpoint has the division of the data
	parts   *checkpoint.Parts // nil: the trainers read fixed shares
	resumes bool              // a new run resumes there
	step    int64             // the job's step in that checkpoint, in mode sync
}

// findSplits reads them if the configuration resumes from a checkpoint.
func (c *Config) findSplits(ctx context.Context, cl *client.Client) (s savedSplits, err error) {
	if c.Resume == "" {
		return s, nil
	}
	from, err := cl.Restored(ctx)
	if err != nil {
		return s, err
	}
	source := from.Of(c.mainTable())
	s.id = source.ID
	path := c.Resume
	if path == "auto" {
		if source.ID == "" {
			return s, nil
		}
		path = source.Destination + "/" + source.Name
	}
	s.parts, s.found, err = readParts(ctx, path, c.Job)
	if c.Resume == "auto" && rowraft.CodeOf(err) == rowraft.CodeNotFound { // the checkpoint was deleted since
		return savedSplits{id: source.ID}, nil
	}
	trained := slices.ContainsFunc(source.Trained, func(t client.Trainer) bool { return t.Job == c.Job })
	s.resumes = s.parts != nil && !trained
	if err == nil && s.found && !trained && c.Mode == Sync {
		s.step, err = readJobStep(ctx, path, c.Job)
	}
	return s, err
}

func (c *Config) lease() time.Duration {
	if c.Lease == 0 {
		return defaultLease
	}
	return c.Lease
}

// settings returns what all workers of the job must agree on, by the names in the job's file.
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	_ = c.member.Leave(ctx, client.LeaveFailed, err.Error(), nil)
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
	parted := entered.splitData
	c.Resume, c.Parts, c.again = "", &parted, true
	return c
}

// errJobStopped ends a run whose job was stopped.
var errJobStopped = errors.New("the job was stopped")

// leave tells the registry that this trainer has ended, and why.
func (j *Job) leave(ctx context.Context, r *Result, failure error) {
	m := j.cfg.member
	if m == nil || m.Left() {
		return
	}
	patience := j.cfg.Patience
	switch {
	case failure != nil:
		patience = min(patience, leavePatience)
	case r.Interrupted: // the others wait for it as long as its lease
		patience = min(patience, max(leavePatience, j.cfg.lease()))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	why, reason := client.LeaveEnded, ""
	switch {
	case failure != nil:
		why, reason = client.LeaveFailed, failure.Error()
	case r.Interrupted:
		why = client.LeaveStopped
	}
	parts := j.parts.Reached()
	for i := range parts {
		if failure == nil { // what was read ahead is not trained
			parts[i].Read = parts[i].Acknowledged
		}
	}
	err := m.Leave(ctx, why, reason, parts)
	// If the call fails the lease expires; nothing else depends on it.
	if err != nil && failure == nil && rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		j.note("left without telling the scheduler: %v", err)
	}
}

// beatRates turns counters into rates between two beats.
type beatRates struct {
	at             time.Time
	step, examples int64
	waited         time.Duration
}

var nan = math.NaN()

// beat returns the progress of this trainer for the scheduler. One goroutine at a time may call it.
func (j *Job) beat() client.Beat {
	p := j.report.now()
	b := client.Beat{
		Step: p.Step, Examples: p.Examples, BatchesSkipped: p.BatchesSkipped,
		Loss: float64(p.Loss), AUC: float64(p.AUC), Stopping: j.stopping.Load(),
		StepsPerSecond: nan, ExamplesPerSecond: nan, StalenessSteps: float64(p.StalenessSteps), Waiting: nan,
		Parts: j.parts.Reached(),
	}
	now := time.Now()
	waited := j.report.waiting(now)
	if last := j.beats; !last.at.IsZero() && now.After(last.at) {
		seconds := now.Sub(last.at).Seconds()
		b.StepsPerSecond = float64(p.Step-last.step) / seconds
		b.ExamplesPerSecond = float64(p.Examples-last.examples) / seconds
		b.Waiting = min(max((waited-last.waited).Seconds()/seconds, 0), 1)
	}
	j.beats = beatRates{now, p.Step, p.Examples, waited}
	return b
}

// stepTables are tables whose workers depend on each other through the shards.
type stepTables interface {
	Join(client.JobOptions) error
	// Adopt installs a later generation.
	Adopt(rowraft.Generation)
}

// membership is the newest state of the job's members from the scheduler.
type membership struct {
	mu     sync.Mutex
	newest client.Members
	joined stepTables    // nil before join
	first  chan struct{} // closed at the first update
}

func (m *membership) update(now client.Members) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest.Generation == 0 {
		close(m.first)
	}
	m.newest = now
	if m.joined != nil {
		m.joined.Adopt(rowraft.Generation(now.Generation))
	}
}

// join waits for the first generation that every shard knows, and joins it, if the workers of this mode depend on
// each other.
func (j *Job) join(ctx context.Context, m *membership) error {
	tables, ok := j.tables.(stepTables)
	if j.cfg.member == nil || !j.cfg.member.InShards() || !ok {
		return nil
	}
	if j.cfg.Trainers > 1 {
		j.note("waiting for the job's other trainers")
	}
	patience := time.NewTimer(j.cfg.Patience)
	defer patience.Stop()
	select {
	case <-m.first:
	case <-patience.C:
		return rowraft.Errorf(rowraft.CodeDeadline,
			"not all of the job's %d trainers registered within %v; `rowraft job describe %s` lists those that did",
			j.cfg.Trainers, j.cfg.Patience, j.cfg.Job)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	me := j.cfg.member
	err := tables.Join(client.JobOptions{
		ID: rowraft.JobID(me.Run()), Generation: rowraft.Generation(m.newest.Generation),
		Rank: rowraft.Rank(me.Rank()), Incarnation: me.Incarnation(),
	})
	m.joined = tables
	if s, ok := j.mode.(*mode.SyncStep); ok {
		s.JoinAt(m.newest.FirstStep)
	}
	return err
}

// splitsPerTrainer is the number of splits per trainer and epoch. After a death other workers read at most one
// split again, and the last splits of an epoch keep every trainer busy.
const splitsPerTrainer = 8

// partPlan returns the splits of the training examples. All trainers of a job compute the same plan.
func (c *Config) partPlan(examples int64) client.PartPlan {
	share := (examples + int64(c.Trainers)*splitsPerTrainer - 1) / (int64(c.Trainers) * splitsPerTrainer)
	batch := int64(c.Batch)
	p := client.PartPlan{
		Examples: examples, PartExamples: (share + batch - 1) / batch * batch, Epochs: int64(c.Epochs),
		ByRank: c.Mode == Sync && c.Quorum == 1 && c.Deadline == 0, InLog: c.usesSteps(),
	}
	if c.Epochs == 0 && c.Steps == 0 {
		p.Epochs = 1
	}
	return p
}

// usesSteps reports whether every shard knows the job's workers.
func (c *Config) usesSteps() bool { return c.Mode == Sync || c.Mode == SSP }

// usesSplits reports whether the scheduler divides the data of the job. Each trainer reads a fixed share if it did
// so in the checkpoint that the run resumes from, and if the examples have no numbers.
func (c *Config) usesSplits(set data.Set, saved savedSplits) (bool, error) {
	_, ranger := set.(data.Ranger)
	able := ranger && set.TrainSize() > 0
	switch {
	case c.Parts == nil && saved.found:
		return able && saved.parts != nil, nil
	case c.Parts == nil:
		return able && c.Trainers > 1, nil
	case *c.Parts && !able:
		return false, invalid("parts: %s cannot be divided by the scheduler, which needs a bounded data set that can "+
			"be read from any position", set.Name())
	case saved.found && *c.Parts != (saved.parts != nil):
		return *c.Parts, invalid("the data was divided differently when the checkpoint was made: parts is %v now",
			*c.Parts)
	}
	return *c.Parts, nil
}
