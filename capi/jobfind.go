//go:build cgo

package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/trainer/member"
)

// firstPoll is how often a worker looks for the worker of rank 0.
const firstPoll = 100 * time.Millisecond

// dyingPatience is how long a process of rank 0 that was stopped together with this worker's may still be connected.
const dyingPatience = 5 * time.Second

// findRequest asks what a worker resumes from.
type findRequest struct {
	Job        string   `json:"job"`
	Rank       int      `json:"rank"`
	Workers    int      `json:"workers"`
	Tables     []string `json:"tables"`
	Checkpoint string   `json:"checkpoint"` // DESTINATION/NAME; "": the newest
	Restore    bool     `json:"restore"`    // the tables may be put back
}

// foundJSON is where a worker resumes.
type foundJSON struct {
	Checkpoint string          `json:"checkpoint"` // DESTINATION/NAME; "": the job is new
	Step       int64           `json:"step"`       // steps of the worker
	Restored   bool            `json:"restored"`   // the tables were put back
	Was        int64           `json:"was"`        // steps that the worker had before; 0: unknown
	Made       *checkpointJSON `json:"made"`       // that checkpoint
}

// findJob finds the checkpoint that a worker resumes from. The worker of rank 0 puts the tables in place. The others
// wait until it has registered.
//
// Errors: CodePrecondition if other workers train, or if the tables hold rows that the job has trained and no
// checkpoint of it is known.
func findJob(ctx context.Context, s *session, q findRequest) (any, error) {
	f := &finder{s: s, q: q}
	find := f.first
	if q.Rank > 0 {
		find = f.other
	}
	saved, err := find(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.found = saved
	s.mu.Unlock()
	if saved != nil {
		f.out.Checkpoint, f.out.Step = saved.Path, saved.State.Step
		f.out.Made, err = newCheckpointJSON(saved.Manifest, path.Base(saved.Path), "")
	}
	return f.out, err
}

type finder struct {
	s   *session
	q   findRequest
	out foundJSON
}

func refused(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodePrecondition, format, args...)
}

// describe returns the job as the registry has it; nil if there is none.
func (f *finder) describe(ctx context.Context) (info *rowraftv1.JobInfo, err error) {
	err = f.s.client.Control().Call(ctx, "describe job "+f.q.Job,
		func(ctx context.Context, conn grpc.ClientConnInterface) error {
			r, err := rowraftv1.NewJobsClient(conn).DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: f.q.Job})
			info = r.GetJob()
			return err
		})
	if rowraft.CodeOf(err) == rowraft.CodeNotFound {
		return nil, nil
	}
	return info, err
}

func training(m *rowraftv1.MemberInfo) bool {
	return m.GetMember().GetState() == rowraftv1.MemberState_MEMBER_STATE_TRAINING
}

// first is the search of rank 0.
func (f *finder) first(ctx context.Context) (*member.Saved, error) {
	info, err := f.describe(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range info.GetMembers() {
		if m.GetMember().GetRank() == uint32(f.q.Rank) {
			f.out.Was = int64(m.GetBeat().GetStep())
		}
	}
	if slices.ContainsFunc(info.GetMembers(), training) {
		// Workers that died need not wait for their leases. This waits a moment for those that are still connected.
		if _, err := jobs.ReportEnded(ctx, f.s.client, f.q.Job, func(string) bool { return true }); err != nil {
			return nil, err
		}
		if info, err = f.describe(ctx); err != nil {
			return nil, err
		}
	}
	for _, m := range info.GetMembers() {
		if training(m) {
			return nil, refused("worker %s of job %s trains: stop all workers of the job, then start them together",
				m.GetMember().GetWorker(), f.q.Job)
		}
	}
	restored, err := f.s.client.Restored(ctx)
	if err != nil {
		return nil, err
	}
	source := f.source(&restored)
	saved, err := f.choose(ctx, source)
	if err != nil {
		return nil, err
	}
	if saved == nil {
		return nil, f.canStart(ctx, info != nil)
	}
	if saved.ID == source.ID {
		return saved, nil
	}
	command := "rowraft checkpoint restore " + saved.Path + " --table "
	for i, t := range f.q.Tables {
		if i > 0 {
			command += ","
		}
		command += t
	}
	if command += " --replace"; !f.q.Restore {
		return nil, refused("the tables of job %s are not those of checkpoint %s: %s", f.q.Job, saved.Path, command)
	}
	err = restoreTables(ctx, f.s, saved.Path, f.q.Tables)
	if rowraft.CodeOf(err) == rowraft.CodeDenied {
		return nil, fmt.Errorf("%w; an admin can do it, with the workers stopped: %s", err, command)
	}
	f.out.Restored = true
	return saved, err
}

// source returns the checkpoint that all tables of the job come from, if no worker of the job has trained them since;
// else the zero Source.
func (f *finder) source(r *client.Restored) client.Source {
	source := r.Of(f.q.Tables[0])
	for _, t := range f.q.Tables {
		of := r.Of(t)
		if of.ID != source.ID || slices.ContainsFunc(of.Trained, func(t client.Trainer) bool { return t.Job == f.q.Job }) {
			return client.Source{}
		}
	}
	return source
}

// choose reads the state of rank 0: from the checkpoint of the request, that of source, or the newest of the job. It
// returns nil if there is none.
func (f *finder) choose(ctx context.Context, source client.Source) (*member.Saved, error) {
	if f.q.Checkpoint != "" {
		return f.read(ctx, f.q.Checkpoint)
	}
	var paths []string
	if source.ID != "" {
		paths = append(paths, source.Destination+"/"+source.Name)
	}
	made, err := jobCheckpoints(ctx, f.s, f.q.Job)
	if err != nil {
		return nil, err
	}
	for _, path := range append(paths, made...) {
		saved, err := f.read(ctx, path)
		if rowraft.CodeOf(err) != rowraft.CodeNotFound { // deleted, or without a state of this job
			return saved, err
		}
	}
	return nil, nil
}

// read reads the worker's state from a checkpoint.
func (f *finder) read(ctx context.Context, path string) (*member.Saved, error) {
	saved, err := member.ReadSaved(ctx, path, f.q.Job, f.q.Rank)
	switch {
	case err != nil:
		return nil, err
	case saved.State.Opaque == nil:
		return nil, refused("job %s is not one of rowraft.torch in checkpoint %s", f.q.Job, path)
	case saved.State.Trainers != f.q.Workers:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"workers: %d, and job %s has %d in checkpoint %s: each has a fixed share of the data", f.q.Workers, f.q.Job,
			saved.State.Trainers, path)
	}
	return saved, nil
}

// canStart refuses to begin at step 0 with rows that the job has trained. known: the registry has the job.
func (f *finder) canStart(ctx context.Context, known bool) error {
	if !known {
		return nil
	}
	holds := member.HoldsRows(ctx, f.s.client)
	for _, t := range f.q.Tables {
		some, err := holds(t)
		if err != nil {
			return err
		}
		if some {
			return refused("job %[1]s has trained before, no checkpoint of it is known, and table %[2]s holds rows: resume "+
				"from a checkpoint by its path, drop the tables, or start the job as a new one with these rows: "+
				"rowraft job delete %[1]s", f.q.Job, t)
		}
	}
	return nil
}

// other is the search of the other ranks: they resume from the checkpoint of rank 0.
func (f *finder) other(ctx context.Context) (*member.Saved, error) {
	if err := f.awaitFirst(ctx); err != nil {
		return nil, err
	}
	restored, err := f.s.client.Restored(ctx)
	if err != nil {
		return nil, err
	}
	source := restored.Of(f.q.Tables[0])
	if source.ID == "" {
		return nil, nil
	}
	saved, err := f.read(ctx, source.Destination+"/"+source.Name)
	if rowraft.CodeOf(err) == rowraft.CodeNotFound { // the tables come from elsewhere, and the job is new
		return nil, nil
	}
	return saved, err
}

// awaitFirst waits until rank 0 trains. It refuses a worker that has left a job that trains on: its rows are ahead of
// any state that it could resume from.
func (f *finder) awaitFirst(ctx context.Context) error {
	tick := time.NewTicker(firstPoll)
	defer tick.Stop()
	var since time.Time // rank 0 has been training in a run that this worker was in; zero: it is not
	for {
		info, err := f.describe(ctx)
		if err != nil {
			return err
		}
		trains, ended, mine := false, false, false
		for _, m := range info.GetMembers() {
			switch rank := m.GetMember().GetRank(); {
			case rank == uint32(f.q.Rank):
				mine = true
			case rank == 0:
				trains = training(m) && m.GetConnected()
				ended = m.GetMember().GetState() == rowraftv1.MemberState_MEMBER_STATE_ENDED
			}
		}
		switch {
		case (trains || ended) && !mine:
			return nil
		case !trains || !mine: // an earlier run; rank 0 will begin another one
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > dyingPatience:
			return refused("worker w%d has left job %s, which trains on: stop all workers of the job, then start them "+
				"together", f.q.Rank, f.q.Job)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return rowraft.Errorf(rowraft.CodeDeadline, "worker w0 of job %s has not registered: %w", f.q.Job, ctx.Err())
		}
	}
}
