package jobs

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// pausing is a pause, from the scheduler's request on.
type pausing struct {
	id     uint64
	begun  time.Time
	cancel context.CancelFunc
	target chan int64 // the agreed boundary; capacity 1
	at     *Paused    // nil until the trainer has paused
}

// announced is the first boundary at which the trainer could pause.
type announced struct {
	of       *pausing
	boundary int64
}

// reached is the result of a call of Pause.
type reached struct {
	of  *pausing
	at  *Paused
	err error
}

// endPause ends the current pause, whether or not the trainer has reached it.
func (c *streamCall) endPause() {
	p := c.pausing
	if p == nil {
		return
	}
	c.pausing = nil
	p.cancel()
	if p.at != nil {
		p.at.Release()
	}
}

// pause ends the previous pause, if there is one, and begins the requested one.
func (c *streamCall) pause(wg *sync.WaitGroup, q *rowraftv1.AttendPause) {
	c.endPause()
	ctx, cancel := context.WithCancel(c.ctx)
	p := &pausing{id: q.GetId(), begun: time.Now(), cancel: cancel, target: make(chan int64, 1)}
	c.pausing = p
	var agree Agree
	if q.GetAnnounce() {
		agree = func(ctx context.Context, boundary int64) (int64, error) { return c.agree(ctx, p, boundary) }
	}
	wg.Go(func() {
		at, err := c.t.a.Pause(ctx, agree)
		select {
		case c.reached <- reached{p, at, err}:
		case <-c.ctx.Done():
			if err == nil {
				at.Release()
			}
		}
	})
}

// agree is the [Agree] of the pause p.
func (c *streamCall) agree(ctx context.Context, p *pausing, boundary int64) (int64, error) {
	select {
	case c.announced <- announced{p, boundary}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case target := <-p.target:
		return target, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// target passes the agreed boundary to the current pause.
func (c *streamCall) target(t *rowraftv1.AttendTarget) {
	if p := c.pausing; p != nil && p.id == t.GetId() {
		select {
		case p.target <- int64(t.GetBoundary()):
		default: // a repeated message
		}
	}
}

// paused reports the result of Pause to the scheduler.
func (c *streamCall) paused(r reached) {
	switch {
	case r.of != c.pausing, c.ctx.Err() != nil: // the pause was cancelled meanwhile, or the call is over
		if r.err == nil {
			r.at.Release()
		}
	case r.err != nil:
		c.endPause()
		c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Failed{Failed: &rowraftv1.AttendFailed{
			Id: r.of.id, Reason: r.err.Error(), Again: errors.Is(r.err, ErrNotNow),
		}}})
	default:
		c.pausing.at = r.at
		c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Paused{Paused: &rowraftv1.AttendPaused{
			Id: r.of.id, Step: uint64(r.at.Step), Bytes: uint64(r.at.Size), Splits: reachedToProto(r.at.Splits),
			Boundary: uint64(r.at.Boundary),
		}}})
	}
}

// release lets the trainer continue. If the scheduler wants the trainer's state, release starts to send it.
func (c *streamCall) release(r *rowraftv1.AttendRelease) {
	p := c.pausing
	if p == nil || p.id != r.GetId() {
		return
	}
	c.endPause()
	if p.at == nil || !r.GetSend() {
		return
	}
	c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Released{Released: &rowraftv1.AttendReleased{
		Id: p.id, Held: true, PausedNs: uint64(time.Since(p.begun)),
	}}})
	c.uploads.Go(func() { c.upload(p) }) // concurrent with uploads to other checkpoints, whose destinations may be slower
}

// upload sends the state of a pause on a separate stream: a slow destination must not delay the beats on
// the trainer's Stream. The scheduler notices an upload that fails, and ends one that it does not need any
// more.
func (c *streamCall) upload(p *pausing) {
	ctx, cancel := context.WithCancel(c.ctx) // frees the stream after a failure
	defer cancel()
	stream, err := rowraftv1.NewCheckpointsClient(c.conn).SendState(ctx)
	if err != nil {
		return
	}
	w := &stateWriter{stream: stream, head: &rowraftv1.SendStateRequest{Id: p.id, Member: c.t.member.identity}}
	if p.at.Write(w) == nil && w.flush(true) == nil {
		_, _ = stream.CloseAndRecv()
	}
}

// stateWriter cuts a state into messages of stateChunk bytes.
type stateWriter struct {
	stream grpc.ClientStreamingClient[rowraftv1.SendStateRequest, rowraftv1.SendStateReply]
	head   *rowraftv1.SendStateRequest // names the state in the first message; nil afterwards
	buf    []byte
}

func (w *stateWriter) Write(b []byte) (n int, err error) {
	for n < len(b) {
		k := min(len(b)-n, stateChunk-len(w.buf))
		w.buf = append(w.buf, b[n:n+k]...)
		if n += k; len(w.buf) == stateChunk {
			if err := w.flush(false); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *stateWriter) flush(last bool) error {
	m := w.head
	if m == nil {
		m = &rowraftv1.SendStateRequest{}
	}
	m.Content, m.Last = w.buf, last
	w.head, w.buf = nil, nil // gRPC may still read both
	return w.stream.Send(m)
}
