package nemesis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	honestLease = 5 * time.Second
	honestState = 4 << 20 // bytes: more than the buffers of a call have room for
	// soonEnough is how long a checkpoint to a healthy destination may take while no other fault is done. A trainer that
	// never answers may take 30 s of it the first time.
	soonEnough = 45 * time.Second
	// lateEnough is that while others are: servers may be down.
	lateEnough = 100 * time.Second
	// stalled is how late this process may be without its own trainers being late.
	stalled = time.Second
)

// honest is a job with one trainer that does what it is asked, next to jobs and destinations that do not.
type honest struct {
	a       *act
	job     string
	member  *jobs.Member
	at      *jobs.Stream
	c       *client.Client
	stop    context.CancelFunc
	stalled atomic.Bool // this process was late
	made    int         // checkpoints
}

// honestJob starts a job with one trainer.
func (a *act) honestJob(ctx context.Context) (*honest, error) {
	h := &honest{a: a, job: fmt.Sprintf("honest-%08x", a.rng.Uint32())}
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	var err error
	if h.c, err = a.Load.Client(ctx); err != nil {
		return nil, err
	}
	if h.member, h.at, err = enter(ctx, h.c, jobs.Entry{Job: h.job, Worker: "w", Workers: 1, Lease: honestLease},
		h.stand); err != nil {
		return nil, errors.Join(err, h.c.Close())
	}
	watched, stop := context.WithCancel(context.Background())
	h.stop = stop
	go h.watchStalls(watched)
	return h, nil
}

// enter brings a worker into a job and into the checkpoints.
func enter(ctx context.Context, c *client.Client, e jobs.Entry,
	pause func(context.Context, jobs.Agree) (*jobs.Paused, error)) (*jobs.Member, *jobs.Stream, error) {
	m, err := jobs.Enter(ctx, c, e)
	if err != nil {
		return nil, nil, err
	}
	at, err := m.Register(ctx, jobs.Registration{Pause: pause})
	return m, at, err
}

func (h *honest) stand(context.Context, jobs.Agree) (*jobs.Paused, error) {
	return &jobs.Paused{Step: 1, Size: honestState, Release: func() {}, Write: func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(make([]byte, honestState)))
		return err
	}}, nil
}

func (h *honest) watchStalls(ctx context.Context) {
	const every = 100 * time.Millisecond
	for last := time.Now(); sleep(ctx, every); last = time.Now() {
		if time.Since(last) > every+stalled {
			h.stalled.Store(true)
		}
	}
}

// checkpoint makes a checkpoint of the cluster, with the state of the job, to a destination that works. It fails if
// that takes too long.
func (h *honest) checkpoint(ctx context.Context) (took time.Duration, err error) {
	dest, err := os.MkdirTemp(h.a.Checkpoints, "healthy-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dest)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, lateEnough)
	defer cancel()
	var done *rowraftv1.CreateCheckpointReply
	var failed error
	for try := 0; done == nil && ctx.Err() == nil && (time.Since(begun) < soonEnough || !h.a.alone()); try++ {
		limited, cancel := context.WithTimeout(ctx, soonEnough)
		done, failed = h.a.create(limited, try, &rowraftv1.CreateCheckpointRequest{Destination: dest, Job: h.job,
			Name: fmt.Sprintf("c%d", try)})
		cancel()
		if failed != nil {
			sleep(ctx, 200*time.Millisecond)
		}
	}
	took = time.Since(begun)
	if done == nil || h.a.alone() && took > soonEnough {
		return took, fmt.Errorf("VIOLATION: a checkpoint to a destination that works was not made within %v (done: %v): %w",
			took.Round(time.Millisecond), done != nil, failed)
	}
	if trainers := done.GetTrainers(); len(trainers) == 0 {
		return took, fmt.Errorf("VIOLATION: a checkpoint for job %s has no state of its trainer", h.job)
	}
	if _, err := os.Stat(filepath.Join(dest, done.GetName(), "MANIFEST")); err != nil {
		return took, fmt.Errorf("VIOLATION: a checkpoint was reported as made: %w", err)
	}
	h.made++
	return took, nil
}

// create asks one server after another for a checkpoint.
func (a *act) create(ctx context.Context, try int,
	req *rowraftv1.CreateCheckpointRequest) (done *rowraftv1.CreateCheckpointReply, err error) {
	names := a.Cluster.Names()
	conn, err := rpc.Dial(names[try%len(names)], nil, func(ctx context.Context, name string) (net.Conn, error) {
		return a.Cluster.Connect(ctx, name, false)
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := rowraftv1.NewCheckpointsClient(conn).CreateCheckpoint(ctx, req)
	for err == nil {
		var r *rowraftv1.CreateCheckpointReply
		if r, err = stream.Recv(); err == nil && r.GetPhase() == "done" {
			return r, nil
		}
	}
	return nil, rpc.FromStatus(err)
}

// end reports whether the job kept its lease, and ends it.
func (h *honest) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	defer h.c.Close()
	defer h.stop()
	defer h.at.Close()
	var lost bool
	var err error
	for { // the scheduler may be away
		if lost, err = h.member.Lost(ctx); err == nil || !rowraft.CodeOf(err).Retryable() ||
			!sleep(ctx, 200*time.Millisecond) {
			break
		}
	}
	gone := lost || rowraft.CodeOf(err) == rowraft.CodeSessionExpired
	if gone && h.a.alone() && !h.stalled.Load() {
		return fmt.Errorf("VIOLATION: the trainer of %s has lost its lease of %v: %v", h.job, honestLease, err)
	}
	if gone {
		return nil
	}
	if _, err := h.at.Park(ctx, jobs.Parking{Ended: true, Patience: guestPatience}); err != nil && h.a.alone() {
		return fmt.Errorf("the trainer of %s cannot end its work: %w", h.job, err)
	}
	_ = h.member.Leave(ctx, jobs.LeaveEnded, "", nil)
	return nil
}
