package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/state"
)

// Saved is the state of a trainer in a checkpoint.
type Saved struct {
	Path  string // DESTINATION/NAME
	ID    string // of the checkpoint
	State *state.State
	// Tables are the tables in the checkpoint.
	Tables []rowraft.Schema
}

// ReadSaved reads the state of one trainer from the checkpoint at path.
//
// If the scheduler divides the job's data, a trainer that had died gets the state of another trainer, without its
// counters.
//
// Errors: CodeNotFound if there is no such checkpoint, or it has no such state; CodeCorrupt; those of the
// destination.
func ReadSaved(ctx context.Context, path, job string, rank int) (s *Saved, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint %s: %w", path, err)
		}
	}()
	files, m, err := openSaved(ctx, path)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(m.Blobs, func(b checkpoint.Blob) bool { return b.Name == state.BlobName(job, rank) })
	borrowed := false
	if i < 0 && slices.ContainsFunc(m.Blobs, func(b checkpoint.Blob) bool { return b.Name == checkpoint.PartsBlob(job) }) {
		// This trainer had died, and others had its splits: it begins with the state that they all share.
		i = anyState(m, job)
		borrowed = true
	}
	if i < 0 {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "it has no state of trainer %d of job %s: the job was not training when the checkpoint was made, or was left out of it", rank, job)
	}
	st, err := readState(ctx, files, &m.Blobs[i])
	if err != nil {
		return nil, err
	}
	if borrowed {
		st.Rank, st.Ended, st.Step, st.Examples, st.Skipped, st.Acknowledged = rank, false, 0, 0, 0, 0
	}
	s = &Saved{Path: path, ID: m.ID, State: st}
	for _, t := range m.Tables {
		s.Tables = append(s.Tables, t.Schema)
	}
	return s, nil
}

// readState reads a trainer's state to the end, where the checksum is.
func readState(ctx context.Context, files checkpoint.Files, b *checkpoint.Blob) (st *state.State, err error) {
	r, err := checkpoint.OpenFile(ctx, files, b.File)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return state.Read(r)
}

func openSaved(ctx context.Context, path string) (checkpoint.Files, *checkpoint.Manifest, error) {
	url, name, err := depot.Split(path)
	if err != nil {
		return nil, nil, err
	}
	d, err := depot.Open(url)
	if err != nil {
		return nil, nil, err
	}
	files := depot.At(d, name)
	m, err := checkpoint.ReadManifest(ctx, files)
	return files, m, err
}

// anyState returns the index of the state of any trainer of a job, or -1.
func anyState(m *checkpoint.Manifest, job string) int {
	return slices.IndexFunc(m.Blobs, func(b checkpoint.Blob) bool {
		of, found := strings.CutPrefix(b.Name, "trainer/"+job+"/")
		return found && !strings.Contains(of, "/")
	})
}

// readParts reads how far a job had read the data that the scheduler divides; nil if its trainers read fixed
// shares. trained reports whether the checkpoint knows the job.
func readParts(ctx context.Context, path, job string) (p *checkpoint.Parts, trained bool, err error) {
	files, m, err := openSaved(ctx, path)
	if err != nil {
		return nil, false, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	i := slices.IndexFunc(m.Blobs, func(b checkpoint.Blob) bool { return b.Name == checkpoint.PartsBlob(job) })
	if i < 0 {
		return nil, anyState(m, job) >= 0, nil
	}
	b, err := checkpoint.ReadFile(ctx, files, m.Blobs[i].File, nil)
	if err != nil {
		return nil, true, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	p, err = checkpoint.DecodeParts(b)
	return p, true, err
}

// readJobStep reads the step count of a job in mode sync. All its trainers stopped behind the same step, so any
// state has it.
func readJobStep(ctx context.Context, path, job string) (int64, error) {
	files, m, err := openSaved(ctx, path)
	if err != nil {
		return 0, err
	}
	i := anyState(m, job)
	if i < 0 {
		return 0, nil
	}
	st, err := readState(ctx, files, &m.Blobs[i])
	if err != nil {
		return 0, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return st.JobStep, nil
}

// FindSaved reads the state that c.Resume names, or nil if there is none to resume from.
func FindSaved(ctx context.Context, cfg *Config, c *client.Client) (*Saved, error) {
	switch cfg.Resume {
	case "":
		return nil, nil
	case "auto":
	default:
		return ReadSaved(ctx, cfg.Resume, cfg.Job, cfg.rank())
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Patience)
	defer cancel()
	from, err := c.Restored(ctx)
	if err != nil {
		return nil, err
	}
	source := from.Of(cfg.mainTable())
	if source.ID == "" || slices.Contains(source.Trained, client.Trainer{Job: cfg.Job, Rank: cfg.rank()}) {
		return nil, cfg.canStart(&from, holdsRows(ctx, c))
	}
	s, err := ReadSaved(ctx, source.Destination+"/"+source.Name, cfg.Job, cfg.rank())
	switch {
	case rowraft.CodeOf(err) == rowraft.CodeNotFound: // the checkpoint has no state of this trainer; the tables may come from elsewhere
		return nil, cfg.canStart(&from, holdsRows(ctx, c))
	case err == nil && s.ID != source.ID:
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables come from another checkpoint than %s: it has been made again since", s.Path)
	}
	return s, err
}

// canStart returns an error if a run with resume auto must not begin at step 1: the job's tables hold rows, and no
// trainer of the job is running that it could join. If the scheduler divides the data, a worker continues where its
// job is.
func (c *Config) canStart(now *client.Restored, holds func(table string) (bool, error)) error {
	if c.splitData || slices.ContainsFunc(now.Training, func(t client.Trainer) bool { return t.Job == c.Job }) {
		return nil
	}
	for _, t := range c.schemas() {
		some, err := holds(t.Name)
		if err != nil {
			return fmt.Errorf("resume auto: %w", err)
		}
		if some {
			return rowraft.Errorf(rowraft.CodePrecondition,
				"resume auto finds no checkpoint to go on from, and table %s holds rows: training from step 1 would train half-trained rows. Put the job's newest checkpoint in place first: rowraft checkpoint restore DESTINATION/NAME --table '%s.*' --replace; or go on without resume to train these rows on purpose, or drop the tables", t.Name, c.Job)
		}
	}
	return nil
}

// holdsRows returns a function that asks the shards whether a table holds any row. The counts in the cluster's
// status come with heartbeats, which are too old for this decision.
func holdsRows(ctx context.Context, c *client.Client) func(string) (bool, error) {
	return func(table string) (bool, error) {
		t, err := c.Table(ctx, table)
		if rowraft.CodeOf(err) == rowraft.CodeTableNotFound {
			return false, nil
		} else if err != nil {
			return false, err
		}
		some := errors.New("a row")
		err = t.Scan(ctx, func([]rowraft.Key, []float32) error { return some })
		if errors.Is(err, some) {
			return true, nil
		}
		return false, err
	}
}

// attend registers the run for the checkpoints of c's cluster; it resumes from s unless s is nil. It calls onStop
// when an operator stops the job, and onMembers when its members change.
//
// Errors: CodePrecondition if the cluster's tables are not those of the checkpoint.
func (j *Job) attend(ctx context.Context, c *client.Client, s *Saved, onStop func(), onMembers func(client.Members)) (*client.Attending, error) {
	a := client.Attendance{Member: j.cfg.member, Pause: j.pauseFor, Beat: j.beat, Announces: j.pausePoint.Paced(), Destinations: j.cfg.Checkpoint.whenParked()}
	for _, t := range j.ownTables() {
		a.Tables = append(a.Tables, t.ID)
	}
	a.OnMembers = func(m client.Members) {
		if j.hybrid != nil {
			j.hybrid.begin(m, &j.cfg)
		}
		onMembers(m)
	}
	a.OnStop = func() { j.stopping.Store(true); onStop() }
	if s != nil {
		a.Checkpoint = s.ID
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	at, err := c.Attend(ctx, a)
	if err != nil && s != nil && rowraft.CodeOf(err) == rowraft.CodePrecondition {
		return nil, fmt.Errorf("%w; to resume from the checkpoint, put the job's tables in place first, with its trainers stopped: %s", err, j.restoreCommand(s))
	}
	return at, err
}

// pauseFor is the Pause function of the client.
func (j *Job) pauseFor(ctx context.Context, agree client.Agree) (*client.Paused, error) {
	p, release, err := j.pausePoint.Request(ctx, agree)
	if err != nil {
		return nil, err
	}
	s, parts := p.State, j.parts.Reached()
	for i := range parts { // what was read ahead is not trained
		parts[i].Read = parts[i].Acknowledged
	}
	out := &client.Paused{Step: s.Step, Size: s.Size(), Parts: parts, Boundary: p.Boundary(), Release: release, Write: func(w io.Writer) error {
		_, err := s.WriteTo(w)
		return err
	}}
	return out, nil
}

// RunOn is Run on a cluster. It requires that [Enter] has entered the job. It resumes from s unless s is nil, takes
// part in the cluster's checkpoints, and makes those of the configuration. At the end it waits for the other trainers
// of its job, whose checkpoints need its state.
func (j *Job) RunOn(ctx context.Context, c *client.Client, s *Saved) (*Result, error) {
	if s != nil {
		if err := errors.Join(j.Resume(s.State), j.checkTables(s)); err != nil {
			return nil, fmt.Errorf("go on from checkpoint %s: %w", s.Path, err)
		}
	}
	if j.cfg.Mode == Sync && j.cfg.member != nil {
		j.before.jobStep = max(j.before.jobStep, j.cfg.member.BaseStep)
	}
	train, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	members := &membership{first: make(chan struct{})}
	at, err := j.attend(ctx, c, s, func() { cancel(errJobStopped) }, members.update)
	if err != nil {
		j.leave(ctx, nil, err)
		return nil, err
	}
	defer at.Close()
	told := context.AfterFunc(ctx, func() { j.stopping.Store(true) }) // the next beats report it
	defer told()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		select {
		case <-at.Ended():
			if err := at.Err(); err != nil {
				cancel(err)
			}
		case <-train.Done():
		}
	})
	if err := errors.Join(j.setPolicy(ctx, c), j.join(train, members)); err != nil {
		j.leave(ctx, nil, err)
		return nil, err
	}
	if s == nil && j.cfg.Resume == "auto" {
		j.note("RESUME AUTO FOUND NO CHECKPOINT TO RESUME FROM: this trainer begins at step 1, or where its running job is")
	}
	if s != nil {
		j.note("resuming from checkpoint %s after step %d", s.Path, s.State.Step)
	}
	r, err := j.run(train, func(r *Result) error {
		r.Stopped = context.Cause(train) == errJobStopped
		j.leave(ctx, r, nil)
		j.reportRereads(ctx, c, r)
		if s != nil {
			r.ResumedFrom = s.Path
		}
		if err := j.park(ctx, at, r); err != nil || r.Interrupted {
			return err
		}
		return j.deletePolicy(ctx, c)
	})
	if cause := context.Cause(train); ctx.Err() == nil && cause != nil && cause != errJobStopped { // the registration ended with an error
		err = errors.Join(err, cause)
	}
	if err != nil {
		j.leave(ctx, r, err)
	}
	return r, err
}

// reportRereads reports how many examples were read again after workers had died.
func (j *Job) reportRereads(ctx context.Context, c *client.Client, r *Result) {
	if j.parts == nil || r.Interrupted {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	least, most, err := c.RepeatedExamples(ctx, j.cfg.Job)
	if err != nil {
		j.note("the number of examples that were read more than once is unknown: %v", err)
		return
	}
	r.ReadAgainAtLeast, r.ReadAgainAtMost = &least, &most
	switch {
	case most == 0:
		j.note("every example was read once an epoch")
	case least == most:
		j.note("every example was read; %d of them once more, after workers had died", most)
	default:
		j.note("every example was read; %d to %d of them once more, after workers had died", least, most)
	}
}

// checkTables returns an error if a table of the run did not come with the checkpoint: someone dropped it since,
// and the run has created an empty one.
func (j *Job) checkTables(s *Saved) error {
	for _, t := range j.ownTables() {
		if !slices.ContainsFunc(s.Tables, func(o rowraft.Schema) bool { return o.ID.Origin() == t.ID.Origin() }) {
			return rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables do not come from checkpoint %s: table %s was created after it; put the job's tables in place first, with its trainers stopped: %s", s.Path, t.Name, j.restoreCommand(s))
		}
	}
	return nil
}

// ownTables returns the run's tables in the cluster.
func (j *Job) ownTables() (out []*rowraft.Schema) {
	all := []*rowraft.Schema{&j.embeddings, &j.dense, &j.audit}
	for i := range j.layout.tables {
		all = append(all, &j.layout.tables[i].schema)
	}
	for _, t := range all {
		if t.ID != 0 {
			out = append(out, t)
		}
	}
	return out
}

// restoreCommand returns the command that puts the job's tables in place and changes no others.
func (j *Job) restoreCommand(s *Saved) string {
	return fmt.Sprintf("rowraft checkpoint restore %s --table '%s.*' --replace", s.Path, j.cfg.Job)
}

// policyName returns the name of the job's checkpoint policy.
func (j *Job) policyName() string { return "job-" + j.cfg.Job[:min(len(j.cfg.Job), 56)] }

// setPolicy makes the cluster create the job's regular checkpoints. The first trainer calls it for all.
func (j *Job) setPolicy(ctx context.Context, c *client.Client) error {
	conf := &j.cfg.Checkpoint
	if conf.Every == 0 || j.cfg.rank() != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	keep := conf.Keep
	if keep == 0 {
		keep = 5
	}
	return c.SetCheckpointPolicy(ctx, client.CheckpointPolicy{
		Name: j.policyName(), Destination: conf.To, Every: conf.Every, Keep: keep, KeepWithin: conf.KeepWithin, Job: j.cfg.Job,
		SkipAbsent: conf.SkipAbsent, FullEvery: conf.FullEvery,
	})
}

// deletePolicy ends the regular checkpoints when the job is done: the rows do not change any more.
func (j *Job) deletePolicy(ctx context.Context, c *client.Client) error {
	if j.cfg.Checkpoint.Every == 0 || j.cfg.rank() != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	err := c.DeleteCheckpointPolicy(ctx, j.policyName())
	if rowraft.CodeOf(err) == rowraft.CodeNotFound { // an operator has deleted it
		return nil
	}
	return err
}

func (j *Job) note(format string, args ...any) { j.report.note(format, args...) }

// stopPatience is how long a trainer with a stop request waits for its on_stop checkpoint. A second signal ends it
// at once.
const stopPatience = 10 * time.Minute

// park waits until the cluster no longer needs this trainer's state, and for the checkpoint at the end or on stop.
func (j *Job) park(ctx context.Context, at *client.Attending, r *Result) error {
	conf := &j.cfg.Checkpoint
	p := client.Parking{Ended: !r.Interrupted, Destination: conf.atEnd(), SkipAbsent: conf.SkipAbsent, Patience: j.cfg.Patience}
	if r.Interrupted {
		patience := leavePatience
		if p.Destination = ""; conf.OnStop {
			p.Destination, patience = conf.To, stopPatience
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
	}
	if p.Destination != "" {
		j.note("making a checkpoint in %s", p.Destination)
	} else if j.cfg.Trainers > 1 && p.Ended {
		j.note("done; waiting for the job's other trainers")
	}
	path, err := at.Park(ctx, p)
	switch {
	case path != "":
		r.Checkpoint = path
		j.note("made checkpoint %s", path)
	case p.Destination != "" && err != nil:
		return fmt.Errorf("checkpoint in %s: %w", p.Destination, err)
	case err != nil && ctx.Err() != nil && p.Ended:
		r.Interrupted = true
	case err != nil:
		j.note("left without telling the scheduler: %v", err) // nothing depends on it
	}
	return nil
}

// leavePatience is how long a trainer that stops tries to tell the scheduler.
const leavePatience = 5 * time.Second
