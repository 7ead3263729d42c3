package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	Tables   []rowraft.Schema
	Manifest *checkpoint.Manifest
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
	if i < 0 && slices.ContainsFunc(m.Blobs,
		func(b checkpoint.Blob) bool { return b.Name == checkpoint.SplitsBlob(job) }) {
		// This trainer had died, and others had its splits: it begins with the state that they all share.
		i = anyState(m, job)
		borrowed = true
	}
	if i < 0 {
		return nil, rowraft.Errorf(rowraft.CodeNotFound,
			"it has no state of trainer %d of job %s: the job was not training when the checkpoint was made, "+
				"or was left out of it", rank, job)
	}
	st, err := readState(ctx, files, &m.Blobs[i])
	if err != nil {
		return nil, err
	}
	if borrowed {
		// The weights are shared by all trainers of the job, the counters are those of one.
		st.Rank, st.Ended, st.Step, st.Examples, st.Skipped, st.Acknowledged = rank, false, 0, 0, 0, 0
	}
	s = &Saved{Path: path, ID: m.ID, State: st, Manifest: m}
	for _, t := range m.Tables {
		s.Tables = append(s.Tables, t.Schema)
	}
	return s, nil
}

// CheckTables returns an error if one of the tables of a job did not come with the checkpoint: someone dropped it
// since, and the run has created an empty one.
func (s *Saved) CheckTables(tables []*rowraft.Schema) error {
	for _, t := range tables {
		if !slices.ContainsFunc(s.Tables, func(o rowraft.Schema) bool { return o.ID.Origin() == t.ID.Origin() }) {
			return rowraft.Errorf(rowraft.CodePrecondition,
				"the cluster's tables do not come from checkpoint %s: table %s was created after it; put the job's "+
					"tables in place first, with its trainers stopped: %s", s.Path, t.Name, s.RestoreCommand(tables))
		}
	}
	return nil
}

// RestoreCommand returns the command that puts these tables of a job in place and changes no others. It names each one:
// the pattern JOB.* would also match the tables of a job JOB.x.
func (s *Saved) RestoreCommand(tables []*rowraft.Schema) string {
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return RestoreCommand(s.Path, names)
}

// RestoreCommand returns the command that puts tables of a checkpoint in place and changes no others.
func RestoreCommand(path string, tables []string) string {
	var names []string
	for _, t := range tables {
		if !slices.Contains(names, t) {
			names = append(names, t)
		}
	}
	return fmt.Sprintf("rowraft checkpoint restore %s --table %s --replace", path, strings.Join(names, ","))
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

// ReadSplits reads how far a job had read the data that the scheduler divides; nil if its trainers read fixed
// shares. trained reports whether the checkpoint knows the job.
func ReadSplits(ctx context.Context, path, job string) (p *checkpoint.Splits, trained bool, err error) {
	files, m, err := openSaved(ctx, path)
	if err != nil {
		return nil, false, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	i := slices.IndexFunc(m.Blobs, func(b checkpoint.Blob) bool { return b.Name == checkpoint.SplitsBlob(job) })
	if i < 0 {
		return nil, anyState(m, job) >= 0, nil
	}
	b, err := checkpoint.ReadFile(ctx, files, m.Blobs[i].File, nil)
	if err != nil {
		return nil, true, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	p, err = checkpoint.DecodeSplits(b)
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

// Auto, in Resume.From, names the checkpoint that the cluster's tables come from.
const Auto = "auto"

// Resume is what a trainer may resume from.
type Resume struct {
	From     string // DESTINATION/NAME of a checkpoint, Auto, or "" for none
	Job      string
	Rank     int
	Table    string   // a table that every job has
	Tables   []string // all tables of the job
	Steps    bool     // the job counts steps, as mode sync does
	Patience time.Duration
	// Continues: the scheduler divides the data, and the trainer continues in a run of the job, or begins it with others.
	Continues bool
}

// State reads the trainer's state from the checkpoint, or returns nil if there is none to resume from.
//
// Errors: CodePrecondition if the trainer must not begin at step 1 either.
func (q *Resume) State(ctx context.Context, c *client.Client) (*Saved, error) {
	switch q.From {
	case "":
		return nil, nil
	case Auto:
	default:
		return ReadSaved(ctx, q.From, q.Job, q.Rank)
	}
	ctx, cancel := context.WithTimeout(ctx, q.Patience)
	defer cancel()
	from, err := c.Restored(ctx)
	if err != nil {
		return nil, err
	}
	source := from.Of(q.Table)
	if source.ID == "" || slices.Contains(source.Trained, client.Trainer{Job: q.Job, Rank: q.Rank}) {
		return nil, q.canStart(&from, HoldsRows(ctx, c))
	}
	s, err := ReadSaved(ctx, source.Destination+"/"+source.Name, q.Job, q.Rank)
	switch {
	case rowraft.CodeOf(err) == rowraft.CodeNotFound:
		// The checkpoint has no state of this trainer; the tables may come from elsewhere.
		return nil, q.canStart(&from, HoldsRows(ctx, c))
	case err == nil && s.ID != source.ID:
		return nil, rowraft.Errorf(rowraft.CodePrecondition,
			"the cluster's tables come from another checkpoint than %s: it has been made again since", s.Path)
	}
	return s, err
}

// canStart returns an error if a run with resume auto must not begin at step 1: the job's tables hold rows, and no
// trainer of the job is running that it could join. A trainer that continues in a run needs no check.
func (q *Resume) canStart(now *client.Restored, holds func(table string) (bool, error)) error {
	if q.Continues || slices.ContainsFunc(now.Training, func(t client.Trainer) bool { return t.Job == q.Job }) {
		return nil
	}
	for _, t := range q.Tables {
		some, err := holds(t)
		if err != nil {
			return fmt.Errorf("resume auto: %w", err)
		}
		if some {
			return rowraft.Errorf(rowraft.CodePrecondition,
				"resume auto finds no checkpoint to resume from, and table %s holds rows: training from step 1 would "+
					"train half-trained rows. Put the job's newest checkpoint in place first: %s; or start without "+
					"resume to train these rows on purpose, or drop the tables", t, RestoreCommand("DESTINATION/NAME", q.Tables))
		}
	}
	return nil
}

// HoldsRows returns a function that asks the shards whether a table holds any row. The counts in the cluster's
// status come with heartbeats, which are too old for this decision.
func HoldsRows(ctx context.Context, c *client.Client) func(string) (bool, error) {
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

// SavedSplits is what a checkpoint has about data that the scheduler divides.
type SavedSplits struct {
	ID      string             // the checkpoint that the cluster's tables come from; "": none, or not needed
	Found   bool               // a checkpoint has the division of the data
	Splits  *checkpoint.Splits // nil: the trainers read fixed shares
	Resumes bool               // a new run resumes there
	Step    int64              // the job's step in that checkpoint, if it counts steps
}

// FindSplits reads them, if the trainer resumes from a checkpoint.
func (q *Resume) FindSplits(ctx context.Context, cl *client.Client) (s SavedSplits, err error) {
	if q.From == "" {
		return s, nil
	}
	from, err := cl.Restored(ctx)
	if err != nil {
		return s, err
	}
	source := from.Of(q.Table)
	s.ID = source.ID
	path := q.From
	if path == Auto {
		if source.ID == "" {
			return s, nil
		}
		path = source.Destination + "/" + source.Name
	}
	s.Splits, s.Found, err = ReadSplits(ctx, path, q.Job)
	if q.From == Auto && rowraft.CodeOf(err) == rowraft.CodeNotFound { // the checkpoint was deleted since
		return SavedSplits{ID: source.ID}, nil
	}
	trained := slices.ContainsFunc(source.Trained, func(t client.Trainer) bool { return t.Job == q.Job })
	s.Resumes = s.Splits != nil && !trained
	if err == nil && s.Found && !trained && q.Steps {
		s.Step, err = readJobStep(ctx, path, q.Job)
	}
	return s, err
}
