package trainer

import "context"

// pace counts how far a trainer is that waits for others of its job, so that all of them
// stand at one boundary: steps of the job in mode sync, rounds of averaging where trainers
// keep weights in mode async. Its fields are under gate.mu.
type pace struct {
	per   int64 // batches from one boundary to the next; 0: this trainer waits for nobody
	done  int64 // batches, counted as all trainers count them
	ahead int64 // begun, and not done
}

// begun is the boundary behind all that was begun.
func (p *pace) begun() int64 {
	if p.per == 0 {
		return 0
	}
	return (p.done + p.ahead) / p.per
}

// begin says whether the loop may begin a batch: it may if it gets neither a request to
// stand for nor a channel to wait on.
func (g *gate) begin() (stand *pause, wait <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.asked
	switch {
	case p != nil && !p.together, p != nil && p.agreed && g.pace.begun() >= p.limit:
		return p, nil
	case p != nil && (g.pace.done+g.pace.ahead+1)/g.pace.per > p.limit:
		return nil, p.settled
	}
	g.pace.count(1)
	return nil, nil
}

// count counts batches begun.
func (p *pace) count(n int64) {
	if p.per > 0 {
		p.ahead += n
	}
}

// back says that what was begun came to nothing.
func (g *gate) back() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.count(-1)
}

// did says that one of those begun is done, and how many are, as all trainers count.
func (g *gate) did(done int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.count(-1)
	g.pace.done = max(g.pace.done, done)
}

// reach says how many are done, and none of those begun.
func (g *gate) reach(done int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.done = max(g.pace.done, done)
}

// beyond waits until nobody negotiates, and returns the request behind whose boundary n
// is, nil if there is none.
func (g *gate) beyond(ctx context.Context, n int64) *pause {
	for {
		g.mu.Lock()
		p, behind := g.asked, false
		agreed := false
		if p != nil && p.together {
			behind, agreed = n > p.limit, p.agreed
		}
		g.mu.Unlock()
		if !behind {
			return nil
		}
		if agreed {
			return p
		}
		select {
		case <-p.settled:
		case <-ctx.Done():
			return nil
		}
	}
}

// begin lets the loop begin a batch. Where it must not yet, it waits, and calls stand where
// somebody wants the state. It returns false if ctx ends before.
func (j *Job) begin(ctx context.Context, stand func(*pause) error) (bool, error) {
	for ctx.Err() == nil {
		p, wait := j.gate.begin()
		switch {
		case p != nil:
			if err := stand(p); err != nil {
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
