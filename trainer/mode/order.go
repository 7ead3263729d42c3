package mode

import "sync"

// batchOrder makes the pushes of batches happen one after the other, in the order of their numbers. Modes sync and ssp
// need it: a step or a clock must not overtake an earlier one of the same trainer.
type batchOrder struct {
	mu   sync.Mutex
	cond sync.Cond
	done int64 // the last batch that is finished
	err  error // the error that ended the order; nil while there is none
}

func newBatchOrder() *batchOrder {
	t := &batchOrder{}
	t.cond.L = &t.mu
	return t
}

// await waits until all batches after first and before step are finished.
func (t *batchOrder) await(step, first int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && max(t.done, first) < step-1 { // each batch ends in time
		t.cond.Wait()
	}
	return t.err
}

// finish marks batch step as finished. An error fails all batches that follow.
func (t *batchOrder) finish(step int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.err = step, err
	t.cond.Broadcast()
}
