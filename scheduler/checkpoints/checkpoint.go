package checkpoints

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	// holdLease bounds how long pushes wait for one cut. A shard ends the hold by itself after this time.
	holdLease = time.Second
	// cutAttempts bounds the attempts of a cut. An election or a slow disk can fail one attempt.
	cutAttempts = 5
	cutRetry    = 300 * time.Millisecond
	cutTimeout  = 90 * time.Second // of one attempt, including the snapshots of the log
	// maxBlobBytes bounds one blob that a trainer stores in a checkpoint.
	maxBlobBytes = 4 << 20
	maxBlobs     = 4096
	// busyPatience bounds the wait for another operation. It is longer than a checkpoint waits for absent trainers.
	busyPatience = 10 * time.Second
	// leavingPatience is busyPatience for the checkpoint of leaving trainers.
	leavingPatience = 10 * time.Minute
)

// Service is the service that makes and restores checkpoints. An operation lives as long as its call. What must
// outlive the call is in the logs of the scheduler's group and of the shards.
//
// Goroutines: RunPolicies blocks; every other goroutine ends with the call that started it. ended.mu is held alone.
type Service struct {
	rowraftv1.UnimplementedCheckpointsServer
	lead         Leader
	trainers     Trainers
	machine      *meta.Machine
	view         *meta.View
	logger       *slog.Logger
	version      string
	destinations []string

	made       made
	ops        tasks
	policyRuns tasks // running policies; a policy excludes other policies to its destination

	ended struct { // restores whose stages were dropped or closed a moment ago
		mu sync.Mutex
		at map[[16]byte]time.Time
	}
}

// Options are what a Service needs.
type Options struct {
	Leader       Leader
	Trainers     Trainers
	Machine      *meta.Machine
	View         *meta.View
	Logger       *slog.Logger
	Version      string   // of the binary
	Destinations []string // below which trainers may request checkpoints
}

// New returns the service.
func New(o Options) *Service {
	return &Service{
		lead: o.Leader, trainers: o.Trainers, machine: o.Machine, view: o.View, logger: o.Logger,
		version: o.Version, destinations: o.Destinations,
	}
}

// Leader is the scheduler's leader, as checkpoints need it.
type Leader interface {
	// Leading returns the term in which this member leads the scheduler, or an error that redirects the caller.
	Leading() (rowraft.Term, error)
	// InSync returns nil after this leader has applied what earlier leaders committed.
	InSync(ctx context.Context) error
	// Propose logs a command and returns the error with which the state machine or the group refuses it.
	Propose(ctx context.Context, c *rowraftv1.MetaCommand) error
	// OnLeader calls fn with a connection to the leader of sh. It follows hints and waits for elections, and starts no
	// attempt after patience.
	OnLeader(ctx context.Context, sh clustermap.Shard, patience time.Duration, fn func(*grpc.ClientConn) error) error
	// Staged returns the restores that the last heartbeats report as staged, with the times of these heartbeats.
	Staged() []StagedRestore
	// Now is the clock of Staged.
	Now() time.Time
}

// StagedRestore is a report of a server that a shard holds a stage of a restore.
type StagedRestore struct {
	ID []byte
	At time.Time
}

// Trainers are the connected trainers and their jobs, as checkpoints need them.
type Trainers interface {
	// Await waits until the trainers that a checkpoint needs are connected. left receives the jobs that are left out.
	Await(ctx context.Context, need string, skip bool, left map[string]error) error
	// Prove finds out which jobs answer, before the cut.
	Prove(ctx context.Context, need string)
	// Pause stops the trainers at a batch boundary. See pauseTrainers.
	Pause(ctx context.Context, need string, skip, again bool, left map[string]error) (Pause, error)
	// Trains reports whether a trainer of the job is connected and does not wait for others to begin.
	Trains(job string) bool
	// Callers returns the certificates of the connected trainers of a job; nil stands for a caller without TLS.
	Callers(job string) []*rpc.Caller
	// CheckOwner refuses a caller that does not own the job.
	CheckOwner(ctx context.Context, job string) error
	// Attend and SendState serve the calls of this name of the service: the stream of a trainer, and a state.
	Attend(grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]) error
	SendState(grpc.ClientStreamingServer[rowraftv1.SendStateRequest, rowraftv1.SendStateReply]) error
}

// Pause is one round in which trainers are paused for a cut. The caller must call End or Cancel.
type Pause interface {
	// ReadData records the positions of the jobs in their data. The trainers have stopped.
	ReadData(ctx context.Context) error
	// Release lets the trainers continue. It returns an error if one of them was not stopped until then.
	Release(ctx context.Context) error
	// Store receives the states of the trainers and writes them to the destination.
	Store(ctx context.Context, d depot.Depot, name string, tag []byte) error
	// Blobs returns the states that Store wrote. It also writes the positions of ReadData and returns them.
	Blobs(ctx context.Context, d depot.Depot, name string, tag []byte) ([]checkpoint.Blob, error)
	// Attended returns the trainers whose states are in the checkpoint.
	Attended() []*rowraftv1.AttendedTrainer
	// End ends the round after the states were received.
	End()
	// Cancel lets the trainers continue after a failure.
	Cancel()
}

// Attend serves the stream of a trainer.
func (c *Service) Attend(stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]) error {
	return c.trainers.Attend(stream)
}

// SendState receives the state of a trainer for a checkpoint.
func (c *Service) SendState(stream grpc.ClientStreamingServer[rowraftv1.SendStateRequest,
	rowraftv1.SendStateReply]) error {
	return c.trainers.SendState(stream)
}

// CreateCheckpoint makes one checkpoint of all shards and reports its progress.
func (c *Service) CreateCheckpoint(req *rowraftv1.CreateCheckpointRequest,
	stream grpc.ServerStreamingServer[rowraftv1.CreateCheckpointReply]) error {
	_, err := c.create(stream.Context(), busyPatience, &creation{req: req, report: stream.Send})
	return err
}

// create runs op and returns the final reply. It waits at most patience for each operation that excludes op. It checks
// the destination first, in the phase opens: a destination that does not answer delays no operation on another one.
func (c *Service) create(ctx context.Context, patience time.Duration,
	op *creation) (*rowraftv1.CreateCheckpointReply, error) {
	term, err := c.awaitLead(ctx)
	if err != nil {
		return nil, err
	}
	if err := op.chooseID(); err != nil {
		return nil, err
	}
	if op.depot, err = depot.Open(op.req.GetDestination()); err != nil {
		return nil, err
	}
	op.running = &task{what: "a checkpoint to " + op.depot.String(), destination: op.depot.String()}
	if err := c.ops.enter(ctx, patience, op.running, opens); err != nil {
		return nil, err
	}
	defer c.ops.leave(op.running)
	op.c, op.term, op.created, op.left = c, term, time.Now().UTC(), make(map[string]error)
	made, err := op.open(ctx)
	if err != nil {
		c.made.ended(op.created, 0, err)
		return nil, err
	}
	if made != nil {
		done, err := op.doneEarlier(made)
		return done, errors.Join(err, op.report(done))
	}
	var done *rowraftv1.CreateCheckpointReply
	if err = c.ops.enter(ctx, patience, op.running, writes); err == nil {
		done, err = op.run(ctx)
	}
	c.made.ended(op.created, done.GetBytes(), err)
	if err != nil {
		c.logger.Warn("a checkpoint failed", "checkpoint", op.name, "destination", op.depot.String(), "err", err)
		return nil, errors.Join(fmt.Errorf("checkpoint %s: %w", op.name, op.blame(err)), op.cleanUp())
	}
	return done, op.report(done)
}

// CreateForJob makes the checkpoint that a leaving trainer of job requests. It calls paused before it pauses the
// trainers.
func (c *Service) CreateForJob(ctx context.Context, job string, park *rowraftv1.AttendPark,
	paused func()) (string, error) {
	if err := c.CheckDestination(ctx, rpc.CallerOf(ctx), park.GetDestination()); err != nil {
		return "", err
	}
	prefix := job[:min(len(job), 60)] + "-stop-"
	if park.GetEnded() {
		prefix = job[:min(len(job), 60)] + "-end-"
	}
	op := &creation{
		prefix: prefix, paused: paused, report: func(*rowraftv1.CreateCheckpointReply) error { return nil },
		req: &rowraftv1.CreateCheckpointRequest{Destination: park.GetDestination(), Job: job,
			SkipAbsent: park.GetSkipAbsent()},
	}
	done, err := c.create(ctx, leavingPatience, op)
	if err != nil {
		return "", err
	}
	return op.depot.String() + "/" + done.GetName(), nil
}

// creation is the state of one CreateCheckpoint.
type creation struct {
	c       *Service
	term    rowraft.Term
	req     *rowraftv1.CreateCheckpointRequest
	report  func(*rowraftv1.CreateCheckpointReply) error // an error ends the operation
	prefix  string                                       // the prefix of a generated name
	paused  func()                                       // called before trainers are paused; may be nil
	running *task
	id      uuid.UUID
	earlier []uuid.UUID // of earlier attempts of this call
	created time.Time
	depot   depot.Depot
	name    string
	base    *deltaBase       // nil: a full checkpoint
	note    string           // why the checkpoint is full although a delta was requested
	left    map[string]error // jobs that are left out, with the reason
}

// open checks the request and the contents of the destination, op.depot. It returns the checkpoint that an earlier
// attempt of the call made, if one did.
func (op *creation) open(ctx context.Context) (*checkpoint.Manifest, error) {
	if op.name = op.req.GetName(); op.name == "" {
		op.name = op.prefix + depot.NameAt(op.created, op.id.String())
	}
	if err := depot.CheckName(op.name); err != nil {
		return nil, err
	}
	if err := checkBlobs(op.req.GetBlobs()); err != nil {
		return nil, err
	}
	there, err := op.depot.List(ctx, op.name)
	if err != nil {
		return nil, err
	}
	if made, err := op.madeEarlier(ctx, there); made != nil || err != nil {
		return made, err
	}
	if slices.ContainsFunc(there, func(e depot.Entry) bool { return !op.wroteEarlier(e) }) {
		return nil, rowraft.Errorf(rowraft.CodeAlreadyExists,
			"checkpoint %s exists in %s, or what is left of one: delete it, or take another name", op.name, op.depot)
	}
	return nil, op.chooseBase(ctx)
}

func checkBlobs(blobs []*rowraftv1.CheckpointBlob) error {
	if len(blobs) > maxBlobs {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%d blobs, at most %d", len(blobs), maxBlobs)
	}
	names := map[string]bool{}
	for _, b := range blobs {
		if err := checkpoint.CheckBlobName(b.GetName()); err != nil {
			return err
		}
		if strings.HasPrefix(b.GetName(), "trainer/") || strings.HasPrefix(b.GetName(), "job/") {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "blob %s: names that begin with trainer/ or job/ are those of "+
				"trainers' states, and of jobs' positions in their data", b.GetName())
		}
		if n := len(b.GetContent()); n == 0 || n > maxBlobBytes || names[b.GetName()] {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "blob %s has %d bytes or stands twice: want 1 to %d, once",
				b.GetName(), n, maxBlobBytes)
		}
		names[b.GetName()] = true
	}
	return nil
}

func (op *creation) run(ctx context.Context) (*rowraftv1.CreateCheckpointReply, error) {
	var files []*shardFileWriter
	var trainers Pause
	for attempt := 1; ; attempt++ {
		var err error
		if files, trainers, err = op.cut(ctx, attempt == 1); err == nil {
			break
		}
		if attempt == cutAttempts || ctx.Err() != nil || !rowraft.CodeOf(err).Retryable() {
			return nil, err
		}
		op.c.logger.Info("the cut of a checkpoint is tried again", "checkpoint", op.name, "err", err)
		select {
		case <-time.After(cutRetry):
		case <-ctx.Done():
			return nil, err
		}
	}
	defer closeAll(files)
	defer trainers.End()
	if err := op.write(ctx, files, trainers); err != nil {
		return nil, err
	}
	m, err := op.manifest(ctx, files, trainers)
	if err != nil {
		return nil, err
	}
	raw, err := m.Encode()
	if err != nil {
		return nil, err
	}
	// Another leader may lead now, and may restore: the manifest would then name files of two states.
	if err := op.stillLeads(); err != nil {
		return nil, err
	}
	// The manifest is written last, and only if there is none: a checkpoint exists from the moment when its manifest does,
	// and all its files exist by then.
	switch made, err := op.putManifest(ctx, m, raw); {
	case err != nil:
		return nil, err
	case made != m:
		return op.doneEarlier(made)
	}
	// A retention or an operator may have deleted files or the base until the manifest protected them. After this check it
	// does.
	if err := op.stands(ctx, m); err != nil {
		return nil, err
	}
	op.c.logger.Info("made a checkpoint", "checkpoint", op.name, "destination", op.depot.String(), "rows", m.Rows(),
		"bytes", m.Bytes(), "held", m.HeldFor.String())
	return &rowraftv1.CreateCheckpointReply{
		Name: op.name, Phase: "done", Bytes: uint64(m.Bytes()), BytesTotal: uint64(m.Bytes()), Manifest: raw,
		Note: op.notes(), Trainers: trainers.Attended(),
	}, nil
}

// notes describes what is unusual about the checkpoint, for the user.
func (op *creation) notes() string {
	var notes []string
	if op.note != "" {
		notes = append(notes, op.note)
	}
	for _, job := range slices.Sorted(maps.Keys(op.left)) {
		notes = append(notes,
			fmt.Sprintf(
				"it has the rows of job %s and not the state of its trainers, so no run of the job can continue from it: %v", job,
				op.left[job]))
	}
	return strings.Join(notes, "; ")
}

// write returns when the rows of all shards and the states of all trainers are stored.
func (op *creation) write(ctx context.Context, files []*shardFileWriter, trainers Pause) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return op.collect(ctx, files) })
	g.Go(func() error { return trainers.Store(ctx, op.depot, op.name, op.tag()) })
	return g.Wait()
}

// tag is in the name of every file of this checkpoint. Another leader that writes a checkpoint of the same name at the
// same time has another tag.
func (op *creation) tag() []byte { return op.id[:4] }

// wrote reports whether a file belongs to this checkpoint; it does not know the manifest.
func (op *creation) wrote(e depot.Entry) bool { return wroteBy(op.id, op.name, e) }

func wroteBy(id uuid.UUID, name string, e depot.Entry) bool {
	files := strings.SplitN(strings.TrimPrefix(e.Name, name+"/"), "-", 3)
	return len(files) == 3 && strings.HasPrefix(files[2], hex.EncodeToString(id[:4]))
}

// cleanUp deletes the files of a failed checkpoint and no file of another one with the same name. It deletes the
// manifest first, if that was written: a manifest without its files must not exist.
func (op *creation) cleanUp() error {
	// The context of the call has usually ended, which is why the checkpoint failed.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := op.depot.List(ctx, op.name)
	if err != nil {
		return err
	}
	var mine []string
	// PutNew may have failed after it wrote. Another checkpoint of the same name has another id.
	if m, err := checkpoint.ReadManifest(ctx, depot.At(op.depot, op.name)); err == nil && m.ID == op.id.String() {
		mine = append(mine, op.name+"/"+checkpoint.ManifestFile)
	}
	for _, e := range found {
		if op.wrote(e) {
			mine = append(mine, e.Name)
		}
	}
	if err := op.depot.Remove(ctx, mine...); err != nil || op.base == nil {
		return err
	}
	return op.base.claim.Drop(ctx)
}

// cut makes one consistent cut through all shards:
//
//  1. It opens the shard files. Nothing waits for this.
//  2. It enters the phase cuts, which one checkpoint at a time can hold.
//  3. It pauses the trainers, holds the pushes of all shards, and marks the cut in every shard's log.
//  4. It reads the data positions and lets the trainers continue.
//
// Without an error every shard is writing its file when cut returns. again means that another attempt follows a
// temporary error.
func (op *creation) cut(ctx context.Context, again bool) (_ []*shardFileWriter, trainers Pause, err error) {
	m := op.c.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return nil, nil, rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	if op.c.machine.PendingRestore() != nil {
		return nil, nil, rowraft.Errorf(rowraft.CodeStarting, "a restore is being finished")
	}
	var files []*shardFileWriter // not a result: a failed cut closes them and returns none
	for _, sh := range m.Shards {
		files = append(files, &shardFileWriter{op: op, shard: sh, slots: m.SlotsOf(sh.ID), cluster: m})
	}
	defer func() {
		if err != nil {
			closeAll(files)
			if trainers != nil {
				trainers.Cancel()
			}
		}
	}()
	if err := op.c.trainers.Await(ctx, op.req.GetJob(), op.req.GetSkipAbsent(), op.left); err != nil {
		return nil, nil, err // before anything is opened
	}
	// Before the phase cuts: a job that does not answer takes its time here, and delays no other checkpoint.
	op.c.trainers.Prove(ctx, op.req.GetJob())
	// Each attempt has a mark of its own, so that a shard cannot take the mark of an earlier attempt for this one.
	mark := uuid.New()
	copy(mark[:], op.tag()) // the tag is in the names of the shard files
	deadline := time.AfterFunc(cutTimeout, func() { closeAll(files) })
	defer func() { deadline.Stop() }()
	if err := all(files, func(p *shardFileWriter) error { return p.prepare(ctx, mark) }); err != nil {
		return nil, nil, err
	}
	for _, p := range files {
		if p.epoch != files[0].epoch || p.epoch != m.Epoch {
			return nil, nil, rowraft.Errorf(rowraft.CodeStarting,
				"shard %d is of table epoch %d, the cluster of %d: a restore is being finished", p.shard.ID, p.epoch, m.Epoch)
		}
	}
	deadline.Stop()
	if err := op.c.ops.enter(ctx, cutTimeout, op.running, cuts); err != nil {
		return nil, nil, err
	}
	// The cut ends here; writing the files takes minutes, in which other checkpoints may cut.
	defer op.c.ops.back(op.running)
	deadline = time.AfterFunc(cutTimeout, func() { closeAll(files) })
	if op.paused != nil {
		op.paused()
	}
	if trainers, err = op.c.trainers.Pause(ctx, op.req.GetJob(), op.req.GetSkipAbsent(), again, op.left); err != nil {
		return nil, nil, err
	}
	// All shards hold before the first one marks. Otherwise a client could get an answer from one shard after its mark,
	// and then push to another shard before that one's mark: the cut would have the later push without the earlier one.
	for _, step := range []func(*shardFileWriter) error{(*shardFileWriter).hold, (*shardFileWriter).mark} {
		if err := all(files, step); err != nil {
			return nil, trainers, err
		}
	}
	// While the trainers are paused: the positions then belong to exactly the rows of the cut.
	if err := trainers.ReadData(ctx); err != nil {
		return nil, trainers, err
	}
	return files, trainers, trainers.Release(ctx)
}

// all calls f for all shard files concurrently.
func all(files []*shardFileWriter, f func(*shardFileWriter) error) error {
	var g errgroup.Group
	for _, p := range files {
		g.Go(func() error {
			if err := f(p); err != nil {
				return fmt.Errorf("shard %d: %w", p.shard.ID, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func closeAll(files []*shardFileWriter) {
	for _, p := range files {
		p.close()
	}
}

// collect waits until all shard files are written and reports progress. The first failure, or the end of ctx, ends all
// of them; collect returns that error.
func (op *creation) collect(ctx context.Context, files []*shardFileWriter) error {
	defer rpc.Report(func() error { return op.progress(files) })()
	defer context.AfterFunc(ctx, func() { closeAll(files) })()
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	for _, p := range files {
		wg.Go(func() {
			if err := p.collect(); err != nil {
				once.Do(func() { failed = fmt.Errorf("shard %d: %w", p.shard.ID, err) })
				closeAll(files)
			}
		})
	}
	wg.Wait()
	if failed == nil {
		failed = ctx.Err()
	}
	return failed
}

func (op *creation) progress(files []*shardFileWriter) error {
	r := &rowraftv1.CreateCheckpointReply{Name: op.name, Phase: "write"}
	for _, p := range files {
		r.Bytes += p.written.Load()
		r.BytesTotal += p.total
	}
	r.BytesTotal = max(r.BytesTotal, r.Bytes)
	return op.report(r)
}
