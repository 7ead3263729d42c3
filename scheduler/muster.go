package scheduler

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// absentPatience is how long a checkpoint waits for a trainer that ought to be
	// there: it may be on its way to a new leader.
	absentPatience = 6 * time.Second
	// pausePatience is how long a trainer may take to its next batch boundary.
	pausePatience = 30 * time.Second
	// announcePatience is how long one may take to say how far it is, which needs no
	// boundary.
	announcePatience = 5 * time.Second
	// releasePatience is how long its answer may take after that.
	releasePatience = 5 * time.Second
)

// patience is that of checkpoints with trainers.
type patience struct{ absent, pause, announce, release time.Duration }

// muster are the trainers of one cut.
type muster struct {
	s       *Scheduler
	id      uint64
	skip    bool // go on without those that do not answer
	members []*paused
	data    []*checkpoint.Parts // that the scheduler divides, by job
}

// paused is one trainer of a muster.
type paused struct {
	id   uint64
	a    *attendee
	in   chan *rowraftv1.AttendRequest
	done chan struct{} // closed when nobody takes from in any more
	once sync.Once

	together    bool   // it has announced a boundary
	boundary    uint64 // that it has announced, then the one at which it stands
	stands      bool
	step, bytes uint64
	parts       []*rowraftv1.PartReached // of the data, that it has
	pausedFor   time.Duration
	blob        checkpoint.Blob
}

// take brings an answer to who waits for it; one of another pause is dropped.
func (p *paused) take(req *rowraftv1.AttendRequest) {
	id := uint64(0)
	switch step := req.GetStep().(type) {
	case *rowraftv1.AttendRequest_Paused:
		id = step.Paused.GetId()
	case *rowraftv1.AttendRequest_Failed:
		id = step.Failed.GetId()
	case *rowraftv1.AttendRequest_Released:
		id = step.Released.GetId()
	case *rowraftv1.AttendRequest_State:
		id = step.State.GetId()
	case *rowraftv1.AttendRequest_Announced:
		id = step.Announced.GetId()
	}
	if id != p.id {
		return
	}
	select {
	case p.in <- req:
	case <-p.done:
	case <-p.a.gone:
	}
}

func (p *paused) end() { p.once.Do(func() { close(p.done) }) }

// next waits for an answer.
func (p *paused) next(ctx context.Context) (*rowraftv1.AttendRequest, error) {
	select {
	case req := <-p.in:
		if f := req.GetFailed(); f.GetAgain() {
			return nil, rowraft.Errorf(rowraft.CodeNoLeader, "%s: %s", p.a.id, f.GetReason())
		} else if f != nil {
			return nil, rowraft.Errorf(rowraft.CodePrecondition, "%s has no state to give: %s", p.a.id, f.GetReason())
		}
		return req, nil
	case <-p.a.gone:
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone", p.a.id)
	case <-ctx.Done():
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "%s does not answer: %w", p.a.id, ctx.Err())
	}
}

// pauseTrainers brings every trainer of the jobs that train to its next batch
// boundary, and those of a job who wait for each other to the same one. job is one of
// them that must be there.
//
// It fails if one of them is not there or does not answer, unless skip is set: then
// the cut goes on without it, and it is the caller's to know that its job cannot go on
// exactly from such a checkpoint. Failing loses nothing, as the last checkpoint is still
// there; so it is what happens unless asked otherwise.
func (s *Scheduler) pauseTrainers(ctx context.Context, job string, skip bool) (*muster, error) {
	who, err := s.assemble(ctx, job, skip)
	if err != nil {
		return nil, err
	}
	m := s.newMuster(who, skip)
	wait, cancel := context.WithTimeout(ctx, s.attendance.patience.pause)
	defer cancel()
	if err := m.stop(wait); err != nil {
		m.letGo()
		return nil, err
	}
	return m, nil
}

// newMuster begins a pause of some trainers.
func (s *Scheduler) newMuster(who []*attendee, skip bool) *muster {
	s.attendance.mu.Lock()
	s.attendance.lastPause++
	m := &muster{s: s, id: s.attendance.lastPause, skip: skip}
	s.attendance.mu.Unlock()
	for _, a := range who {
		p := &paused{id: m.id, a: a, in: make(chan *rowraftv1.AttendRequest), done: make(chan struct{})}
		a.pause.Store(p)
		m.members = append(m.members, p)
	}
	return m
}

// stop returns when all trainers stand.
func (m *muster) stop(ctx context.Context) error {
	barriers := make(map[string]*barrier)
	for _, p := range m.members {
		if p.a.announces {
			if barriers[p.a.id.job] == nil {
				barriers[p.a.id.job] = &barrier{all: make(chan struct{}), patience: m.s.attendance.patience.announce}
			}
			barriers[p.a.id.job].left++
		}
	}
	g, ctx := errgroup.WithContext(ctx) // once one fails nobody need wait for the others, who may wait for it
	if err := m.eachIn(g, func(p *paused) error { return p.stop(ctx, barriers[p.a.id.job]) }); err != nil {
		return err
	}
	for _, p := range m.members {
		if b := barriers[p.a.id.job]; p.together && p.boundary != b.target {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s stands at boundary %d, others of its job at %d", p.a.id, p.boundary, b.target)
		}
	}
	return nil
}

// barrier is where the trainers of a job agree on a boundary.
type barrier struct {
	all      chan struct{} // closed when everybody has said something, or will not
	patience time.Duration // with one that says nothing

	mu     sync.Mutex
	left   int
	target uint64
}

// say takes what one of them has announced, 0 if it has not.
func (b *barrier) say(boundary uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.target = max(b.target, boundary)
	if b.left--; b.left == 0 {
		close(b.all)
	}
}

// stop tells the trainer to pause, and returns when it has. b is nil if it waits for no
// others.
func (p *paused) stop(ctx context.Context, b *barrier) error {
	err := p.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Pause{Pause: &rowraftv1.AttendPause{Id: p.id, Announce: p.a.announces}}})
	if p.a.announces {
		if err == nil {
			err = p.announce(ctx, b.patience)
		}
		b.say(p.boundary) // nothing, if it has gone: the others wait for its word
		if err == nil && p.together {
			err = p.follow(ctx, b)
		}
	}
	for err == nil && !p.stands {
		err = p.hear(ctx)
	}
	return err
}

func (p *paused) tell(r *rowraftv1.AttendReply) error {
	if err := p.a.tell(r); err != nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone: %w", p.a.id, err)
	}
	return nil
}

// announce hears how far the trainer is; one whose training is over stands already.
func (p *paused) announce(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.hear(ctx)
}

// follow tells the trainer where all of its job stand, once that is known.
func (p *paused) follow(ctx context.Context, b *barrier) error {
	select {
	case <-b.all:
	case <-p.a.gone:
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone", p.a.id)
	case <-ctx.Done():
		return rowraft.Errorf(rowraft.CodeDeadline, "the trainers of job %s do not agree where to stand: %w", p.a.id.job, ctx.Err())
	}
	return p.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Target{Target: &rowraftv1.AttendTarget{Id: p.id, Boundary: b.target}}})
}

// hear takes one answer to a pause.
func (p *paused) hear(ctx context.Context) error {
	req, err := p.next(ctx)
	if err != nil {
		return err
	}
	if a := req.GetAnnounced(); a != nil {
		p.together, p.boundary = true, a.GetBoundary()
		return nil
	}
	at := req.GetPaused()
	p.stands, p.step, p.bytes, p.parts = true, at.GetStep(), at.GetBytes(), at.GetParts()
	if p.together {
		p.boundary = at.GetBoundary()
	}
	return nil
}

// each calls f for all members at once. One that fails is left behind, if that is
// allowed.
func (m *muster) each(f func(*paused) error) error { return m.eachIn(&errgroup.Group{}, f) }

// eachIn is each in a group, of which the first error is returned.
func (m *muster) eachIn(g *errgroup.Group, f func(*paused) error) error {
	var mu sync.Mutex
	var stay []*paused
	for _, p := range m.members {
		g.Go(func() error {
			err := f(p)
			if err != nil && m.skip {
				m.s.logger.Warn("a checkpoint goes on without a trainer", "job", p.a.id.job, "rank", p.a.id.rank, "err", err)
				_ = p.goOn(false) // if it is there at all
				p.end()
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			stay = append(stay, p)
			return err
		})
	}
	err := g.Wait()
	sortPaused(stay)
	m.members = stay
	return err
}

// letGo gives the muster up, if there is one: trainers go on and send nothing.
func (m *muster) letGo() {
	if m == nil {
		return
	}
	for _, p := range m.members {
		_ = p.goOn(false) // one that has gone goes on anyway
	}
	m.end()
}

// end takes no more answers.
func (m *muster) end() {
	for _, p := range m.members {
		p.end()
	}
}

func (p *paused) goOn(send bool) error {
	return p.a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Release{Release: &rowraftv1.AttendRelease{Id: p.id, Send: send}}})
}

// release lets the trainers go on. Each must have stood still until then: what it
// pushed before its pause is in the cut, and nothing that it pushed afterwards.
func (m *muster) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.s.attendance.patience.release)
	defer cancel()
	if a := m.newcomer(); a != nil && !m.skip { // what it has pushed may be in the cut, and its state is not
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s began during the cut", a.id)
	}
	return m.each(func(p *paused) error {
		if err := p.goOn(true); err != nil {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone: %w", p.a.id, err)
		}
		req, err := p.next(ctx)
		if err != nil {
			return err
		}
		if !req.GetReleased().GetHeld() {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s did not stand still until the cut", p.a.id)
		}
		p.pausedFor = time.Duration(req.GetReleased().GetPausedNs())
		return nil
	})
}

// newcomer returns a trainer that is there and not of the muster, or nil.
func (m *muster) newcomer() *attendee {
	for _, a := range m.s.attendance.list() {
		if !slices.ContainsFunc(m.members, func(p *paused) bool { return p.a == a }) {
			return a
		}
	}
	return nil
}

// store writes the states of the trainers, which send them now, beside the rows.
func (m *muster) store(ctx context.Context, d depot.Depot, name string, tag []byte) error {
	for i, p := range m.members {
		p.blob = checkpoint.Blob{Name: blobOf(p.a.id), File: checkpoint.File{Name: fmt.Sprintf("trainer-%04d-%x", i, tag)}}
	}
	return m.each(func(p *paused) error {
		defer p.end()
		w := &summed{hash: sha256.New()}
		err := d.Write(ctx, name+"/"+p.blob.File.Name, func(dst io.Writer) error {
			w.dst = dst
			return p.receive(ctx, w)
		})
		if err != nil {
			return fmt.Errorf("state of %s: %w", p.a.id, err)
		}
		p.blob.File.Bytes, p.blob.File.SHA256 = w.n, [32]byte(w.hash.Sum(nil))
		return nil
	})
}

// blobOf is what docs/formats/trainer-state.md calls the state of a trainer.
func blobOf(id trainerID) string { return fmt.Sprintf("trainer/%s/%d", id.job, id.rank) }

// receive takes the pieces of a state until the last.
func (p *paused) receive(ctx context.Context, w io.Writer) error {
	for total := uint64(0); ; {
		req, err := p.next(ctx)
		if err != nil {
			return err
		}
		s := req.GetState()
		if s == nil {
			return rowraft.Errorf(rowraft.CodeInternal, "the trainer sends %T amid its state", req.GetStep())
		}
		if _, err := w.Write(s.GetContent()); err != nil {
			return err
		}
		if total += uint64(len(s.GetContent())); s.GetLast() {
			if total != p.bytes {
				return rowraft.Errorf(rowraft.CodeInternal, "the trainer sent %d bytes, and had spoken of %d", total, p.bytes)
			}
			return nil
		}
	}
}

// summed counts and hashes what goes through it.
type summed struct {
	dst  io.Writer
	hash hash.Hash
	n    int64
}

func (s *summed) Write(b []byte) (int, error) {
	_, _ = s.hash.Write(b) // never fails
	s.n += int64(len(b))
	return s.dst.Write(b)
}
