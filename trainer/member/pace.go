package member

import "context"

// pace counts the progress of a trainer that other trainers of its job wait for, so that all of them can stop at
// one boundary. Boundaries lie between steps of the job in mode sync, and between rounds of averaging where
// trainers keep weights in mode async. PausePoint.mu guards its fields.
type pace struct {
	per   int64 // batches from one boundary to the next; 0: no trainer waits for another
	done  int64 // finished batches, counted as all trainers count them
	ahead int64 // batches that are begun and not finished
}

// begun returns the first boundary behind all begun batches.
func (p *pace) begun() int64 {
	if p.per == 0 {
		return 0
	}
	return (p.done + p.ahead) / p.per
}

// Begun returns the first boundary at which the loop could stop: behind all batches that it has begun.
func (g *PausePoint) Begun() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pace.begun()
}

// begin reports whether the loop may begin a batch. It may if begin returns neither a request to stop for nor a
// channel to wait on.
func (g *PausePoint) begin() (stop *Pause, wait <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.request
	switch {
	case p != nil && !p.joint, p != nil && p.agreed && g.pace.begun() >= p.boundary:
		return p, nil
	// The batch would go beyond the boundary that this trainer has announced. The others may stop there, so it waits until
	// they have agreed.
	case p != nil && (g.pace.done+g.pace.ahead+1)/g.pace.per > p.boundary:
		return nil, p.decided
	}
	g.pace.count(1)
	return nil, nil
}

// count counts n more begun batches.
func (p *pace) count(n int64) {
	if p.per > 0 {
		p.ahead += n
	}
}

// Undo takes back a begun batch that had no data.
func (g *PausePoint) Undo() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.count(-1)
}

// Finish implements [mode.Pauses].
func (g *PausePoint) Finish(done int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.count(-1)
	g.pace.done = max(g.pace.done, done)
}

// Advance implements [mode.Pauses]: all begun batches remain begun.
func (g *PausePoint) Advance(done int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.done = max(g.pace.done, done)
}

// AgreedBefore implements [mode.Pauses].
func (g *PausePoint) AgreedBefore(ctx context.Context, step int64) (boundary int64, refuse func(error)) {
	for {
		g.mu.Lock()
		p, behind, agreed := g.request, false, false
		if p != nil && p.joint {
			boundary, behind, agreed = p.boundary, step > p.boundary, p.agreed
		}
		g.mu.Unlock()
		if !behind {
			return 0, nil
		}
		if agreed {
			return boundary, func(err error) { g.refuse(p, err) }
		}
		select {
		case <-p.decided:
		case <-ctx.Done():
			return 0, nil
		}
	}
}

// SetPace sets how many batches lie between two boundaries of the job, whose trainers wait for each other.
func (g *PausePoint) SetPace(batches int64) { g.pace.per = batches }

// Paced reports whether the job's trainers wait for each other, and can stop at a common boundary only.
func (g *PausePoint) Paced() bool { return g.pace.per > 0 }

// Begin waits until the loop may begin a batch, and calls stop when a checkpoint wants the state. It returns false if
// ctx ends before.
func (g *PausePoint) Begin(ctx context.Context, stop func(*Pause) error) (bool, error) {
	for ctx.Err() == nil {
		p, wait := g.begin()
		switch {
		case p != nil:
			if err := stop(p); err != nil {
				return false, err
			}
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
			}
		default:
			return true, nil
		}
	}
	return false, nil
}
