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
)

// defaultLease is how long a worker may be silent before its job goes on without it.
const defaultLease = 10 * time.Second

// Enter makes this process a member of the job in the cluster's registry, under the
// name worker, and settles its rank in c. Call it before [NewJob], and [Job.RunOn]
// afterwards, which leaves. A name that is "" is that of the rank, if it is known.
//
// Errors: CodeInvalidArgument, with both values, if another worker of the job was
// started with another configuration, or if all workers are there; CodePrecondition
// while the job is being stopped.
func Enter(ctx context.Context, c *Config, cl *client.Client, worker string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	set, err := c.OpenData()
	if err != nil {
		return err
	}
	saved, err := c.findParts(ctx, cl)
	if err != nil {
		return err
	}
	parted, err := c.wantsParts(set, saved)
	if err != nil {
		return err
	}
	e := client.Entry{Job: c.Job, Worker: worker, Workers: c.Trainers, Settings: c.settings(), Rank: c.Rank, Lease: c.lease()}
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
	if c.inShards() {
		e.InShards, e.Gather, e.Deadline = true, true, c.Deadline
		if c.Mode == Sync {
			e.Quorum = c.Quorum
		}
	}
	e.BaseStep = saved.step
	if e.Checkpoint = saved.id; c.Resume == "" {
		e.Restart = !parted
	}
	if parted && saved.goesOn {
		if e.From = saved.parts; e.From.Examples != uint64(e.Parts.Examples) || e.From.PartExamples != uint64(e.Parts.PartExamples) {
			return invalid("the data has %d examples in parts of %d, and had %d in parts of %d when the checkpoint was made: a run goes on with the data, the trainers and the batch that it had",
				e.Parts.Examples, e.Parts.PartExamples, e.From.Examples, e.From.PartExamples)
		}
	}
	m, err := c.enterAnew(ctx, func(ctx context.Context) (*client.Member, error) { return cl.EnterJob(ctx, e) })
	if err != nil {
		return err
	}
	rank := m.Rank()
	c.Rank, c.member, c.set, c.parted = &rank, m, set, parted
	return nil
}

// anewPoll is how often a worker whose job is done without it looks whether others have begun the job anew.
const anewPoll = 250 * time.Millisecond

// enterAnew calls enter, and again for as long as a lease where the job is done without this worker: others that begin it
// anew may have been started a moment later. A process that was lost from that run itself does not wait.
func (c *Config) enterAnew(ctx context.Context, enter func(context.Context) (*client.Member, error)) (*client.Member, error) {
	over := time.NewTimer(c.lease())
	defer over.Stop()
	tick := time.NewTicker(anewPoll)
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

// savedParts is what a checkpoint says of data that the scheduler divides.
type savedParts struct {
	id     string            // of the checkpoint that the cluster's tables come from; "": none, or nobody asks
	there  bool              // a checkpoint says how the data is divided
	parts  *checkpoint.Parts // nil: the trainers divided it
	goesOn bool              // a run that begins goes on there
	step   int64             // of the job there, if its workers keep step
}

// findParts reads it where the configuration says that the run goes on.
func (c *Config) findParts(ctx context.Context, cl *client.Client) (s savedParts, err error) {
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
	s.parts, s.there, err = readParts(ctx, path, c.Job)
	if c.Resume == "auto" && rowraft.CodeOf(err) == rowraft.CodeNotFound { // it was deleted since
		return savedParts{id: source.ID}, nil
	}
	trained := slices.ContainsFunc(from.Trained, func(t client.Trainer) bool { return t.Job == c.Job })
	s.goesOn = s.parts != nil && !trained
	if err == nil && s.there && !trained && c.Mode == Sync {
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

// settings are what all workers of the job must agree on, by the names that they have
// in the job's file.
func (c *Config) settings() map[string]string {
	text, err := json.Marshal(c.terms())
	if err != nil {
		panic(err) // numbers are finite: Validate has seen them
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err) // it was made from a struct
	}
	out := make(map[string]string)
	flatten(out, "", tree)
	if c.Deadline > 0 {
		out["deadline"] = c.Deadline.String()
	}
	delete(out, "trainers") // the registry compares it itself
	return out
}

func flatten(out map[string]string, prefix string, tree map[string]any) {
	for name, v := range tree {
		name = inFile(name)
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
				panic(err) // it was JSON
			}
			out[prefix+name] = string(text)
		}
	}
}

// inFile is the name that the field InitialAccumulator has in a job's file.
func inFile(field string) string {
	var b strings.Builder
	for i, c := range field {
		if unicode.IsUpper(c) && i > 0 && unicode.IsLower(rune(field[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// Abandon says that a trainer that has entered fails with err, if nobody has said so
// yet: the job goes on without it at once, and not when its lease runs out.
func Abandon(ctx context.Context, c *Config, err error) {
	if c.member == nil || c.member.Left() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	_ = c.member.Leave(ctx, client.LeaveFailed, err.Error(), nil)
}

// Lost says whether the job goes on without this trainer because it was silent for longer than
// its lease, and nobody has come in its place: then it may enter again. Not where it would train
// a share of its own once more, from the beginning.
func Lost(ctx context.Context, c *Config) bool {
	if c.member == nil || ctx.Err() != nil || c.hasShare() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	lost, err := c.member.Lost(ctx)
	return lost && err == nil
}

// hasShare says whether the trainer reads a share of its own, of data that has an end, or a place.
func (c *Config) hasShare() bool {
	return !c.parted && (c.Data.Follow != "" || c.set == nil || c.set.TrainSize() > 0)
}

// Again is the configuration with which a trainer that was lost enters its job again: c as it was before
// it entered, with the data divided as it was in the job. It does not go on from a checkpoint twice.
func Again(c, entered Config) Config {
	parted := entered.parted
	c.Resume, c.Parts, c.again = "", &parted, true
	return c
}

// errJobStopped ends a run whose job was stopped.
var errJobStopped = errors.New("the job was stopped")

// leave tells the registry that this trainer trains no more, and why.
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
	parts := j.parts.reached()
	for i := range parts {
		if failure == nil { // what was read ahead is not trained
			parts[i].Read = parts[i].Acknowledged
		}
	}
	err := m.Leave(ctx, why, reason, parts)
	// Else its lease runs out; nothing else depends on it.
	if err != nil && failure == nil && rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		j.note("left without a word to the scheduler: %v", err)
	}
}

// beatMeter turns what is counted into rates between two beats.
type beatMeter struct {
	at             time.Time
	step, examples int64
	waited         time.Duration
}

var nan = math.NaN()

// beat is what this trainer says of itself. Called by one goroutine at a time.
func (j *Job) beat() client.Beat {
	j.mu.Lock()
	p, skipped := j.mu.progress, j.mu.skipped
	j.mu.Unlock()
	b := client.Beat{
		Step: p.Step, Examples: p.Examples, BatchesSkipped: skipped, Loss: float64(p.Loss), AUC: float64(p.AUC), Stopping: j.stopping.Load(),
		StepsPerSecond: nan, ExamplesPerSecond: nan, StalenessSteps: j.meter.staleness(), Waiting: nan, Parts: j.parts.reached(),
	}
	now := time.Now()
	waited := j.meter.waiting(now)
	if last := j.beats; !last.at.IsZero() && now.After(last.at) {
		seconds := now.Sub(last.at).Seconds()
		b.StepsPerSecond, b.ExamplesPerSecond = float64(p.Step-last.step)/seconds, float64(p.Examples-last.examples)/seconds
		b.Waiting = min(max((waited-last.waited).Seconds()/seconds, 0), 1)
	}
	j.beats = beatMeter{now, p.Step, p.Examples, waited}
	return b
}

// joiner are tables whose workers know of each other through the shards.
type joiner interface {
	Join(client.JobOptions) error
	// Adopt makes a later generation known.
	Adopt(rowraft.Generation)
}

// membership is what the scheduler tells of the job's members.
type membership struct {
	mu     sync.Mutex
	newest client.Members
	joined joiner        // nil before
	told   chan struct{} // closed at the first
}

func (m *membership) tell(now client.Members) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest.Generation == 0 {
		close(m.told)
	}
	m.newest = now
	if m.joined != nil {
		m.joined.Adopt(rowraft.Generation(now.Generation))
	}
}

// join waits for the first generation that every shard knows, and becomes a member of it,
// if the mode has workers that know of each other.
func (j *Job) join(ctx context.Context, m *membership) error {
	tables, ok := j.tables.(joiner)
	if j.cfg.member == nil || !j.cfg.member.InShards() || !ok {
		return nil
	}
	if j.cfg.Trainers > 1 {
		j.note("waiting for the job's other trainers")
	}
	patience := time.NewTimer(j.cfg.Patience)
	defer patience.Stop()
	select {
	case <-m.told:
	case <-patience.C:
		return rowraft.Errorf(rowraft.CodeDeadline, "the job's %d trainers were not there within %v; `rowraft job describe %s` names those that are", j.cfg.Trainers, j.cfg.Patience, j.cfg.Job)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	me := j.cfg.member
	err := tables.Join(client.JobOptions{
		ID: rowraft.JobID(me.Run()), Generation: rowraft.Generation(m.newest.Generation), Rank: rowraft.Rank(me.Rank()), Incarnation: me.Incarnation(),
	})
	m.joined = tables
	if s, ok := j.way.(*inStep); ok {
		s.start(m.newest.FirstStep)
	}
	return err
}
