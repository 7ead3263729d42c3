package node

import (
	"runtime"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// segmentOf returns a payload of n rows of dim 4; the keys are every second one from first on.
func segmentOf(n, first int) []byte {
	seg := wire.Segment{Table: 9, N: n, Dim: 4, DType: rowraft.Float32}
	payload := make([]byte, seg.Size())
	body := seg.Put(payload)
	for i := range n {
		k := first + 2*i
		body.Keys[8*i], body.Keys[8*i+1], body.Keys[8*i+2] = byte(k), byte(k>>8), byte(k>>16)
	}
	return payload
}

// The bytes that a leader holds are bounded, for one step and for all. Steps that are not the lowest get
// half of them.
func TestHeldPartsAreBounded(t *testing.T) {
	s := newSteps(&replica{shard: 3})
	j := &jobSteps{id: testJob, token: make(chan struct{}, 1), open: make(map[rowraft.Step]*openStep)}
	s.jobs[testJob] = j
	payload := segmentOf(170_000, 0) // some 3.9 MiB; all parts share it
	push := func(step rowraft.Step, rank rowraft.Rank) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := s.addLocked(j, &stepPush{StepPart: shard.StepPart{Job: testJob, Generation: 1, Rank: rank, Incarnation: 1, Step: step}, fragments: 1, payload: payload})
		return err
	}
	fill := func(step rowraft.Step) (n rowraft.Rank, err error) {
		for ; err == nil; n++ {
			err = push(step, n)
		}
		return n - 1, err
	}
	if n, err := fill(5); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || int(n) != maxStepBytes/len(payload) {
		t.Errorf("the lowest step: %v after %d parts", err, n)
	}
	if n, err := fill(6); rowraft.CodeOf(err) != rowraft.CodeOverloaded || n != 0 {
		t.Errorf("a step that is not the lowest: %v after %d parts", err, n)
	}
	if n, err := fill(4); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || int(n) != maxStepBytes/len(payload) {
		t.Errorf("one below: %v after %d parts", err, n)
	}
	if s.held > maxHeldBytes+1<<20 || s.held < maxHeldBytes-2*len(payload) {
		t.Errorf("%d bytes are held, want about %d", s.held, maxHeldBytes)
	}
	s.mu.Lock()
	for _, o := range j.open {
		s.endLocked(j, o, nil)
	}
	s.mu.Unlock()
	if s.held != 0 {
		t.Errorf("%d bytes are held of no step", s.held)
	}
}

// However many jobs fill the room for open steps, the job that began first continues, then the next one.
func TestTheOldestOfManyStepsIsLetIn(t *testing.T) {
	s := newSteps(&replica{shard: 3})
	payload := segmentOf(170_000, 0) // some 3.9 MiB; all parts share it
	var jobs []*jobSteps
	for i := range 4 {
		j := &jobSteps{id: rowraft.JobID{byte(i)}, token: make(chan struct{}, 1), open: make(map[rowraft.Step]*openStep)}
		jobs, s.jobs[j.id] = append(jobs, j), j
	}
	push := func(j *jobSteps, step rowraft.Step, rank rowraft.Rank, payload []byte) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := s.addLocked(j, &stepPush{StepPart: shard.StepPart{Job: j.id, Generation: 1, Rank: rank, Incarnation: 1, Step: step}, fragments: 1, payload: payload})
		return err
	}
	const workers = 30 // together some 117 MiB
	reached := make([]rowraft.Rank, len(jobs))
	full := func() {
		t.Helper()
		for again := true; again; {
			again = false
			for i, j := range jobs { // in turns, so that all are in the middle when there is no room
				if j.open[1] == nil && reached[i] > 0 || reached[i] == workers {
					continue
				}
				if err := push(j, 1, reached[i], payload); err == nil {
					reached[i]++
					again = true
				} else if rowraft.CodeOf(err) != rowraft.CodeOverloaded {
					t.Fatal(err)
				}
			}
			if s.held > maxHeldBytes+maxStepBytes+1<<20 {
				t.Fatalf("%d bytes are held", s.held)
			}
		}
	}
	for i, j := range jobs {
		full()
		if reached[i] != workers {
			t.Fatalf("job %d of 4 stands at part %d of %d, and the others at %d", i, reached[i], workers, reached)
		}
		s.mu.Lock()
		s.endLocked(j, j.open[1], nil)
		s.mu.Unlock()
	}
	if s.held != 0 {
		t.Errorf("%d bytes are held of no step", s.held)
	}

	// Parts without rows take room, too.
	n := rowraft.Step(1)
	for ; push(jobs[0], n, 0, nil) == nil && n < 2*maxOpenSteps; n++ {
	}
	if n != maxOpenSteps+1 || s.held < maxOpenSteps*(stepHeadBytes+partHeadBytes) {
		t.Errorf("%d empty steps of a job are held, and take %d bytes", n-1, s.held)
	}
}

// An entry holds a bounded number of positions: one with more would stop every replica.
func TestPositionsOfAStepAreBounded(t *testing.T) {
	o := &openStep{parts: make(map[rowraft.Rank]*rankPart)}
	with := wire.RankSet{}
	for r := range rowraft.Rank(wire.MaxJobPositions/wire.MaxPushPositions + 1) {
		part := &rankPart{fragments: [][]byte{{}}}
		for i := range rowraft.DataPart(wire.MaxPushPositions) {
			part.positions = append(part.positions, rowraft.Position{Part: rowraft.DataPart(r)*wire.MaxPushPositions + i, Offset: 5})
		}
		o.parts[r] = part
		with.Add(r)
	}
	read, err := o.gather(&mean{}, &with)
	if err != nil || len(read) != wire.MaxJobPositions || read[0].Part != wire.MaxPushPositions {
		t.Fatalf("%d positions, %v; want the highest %d parts", len(read), err, wire.MaxJobPositions)
	}
	entry := wire.AppendStepEntry(nil, wire.EntryHeader{Version: wire.FirstVersion}, &wire.Step{Step: 1, Contributors: with, Positions: read})
	_, body, err := wire.ParseEntryHeader(entry)
	if err == nil {
		_, err = wire.ParseStep(body)
	}
	if err != nil {
		t.Error(err)
	}
}

// A worker that learns of the next generation sends its part of a step that is open in the log again,
// fragment by fragment, in place of a complete one. The step is not closed without that part meanwhile.
func TestAPartThatIsBeingSentAgainIsWaitedFor(t *testing.T) {
	s := newSteps(&replica{shard: 3})
	j := &jobSteps{id: testJob, token: make(chan struct{}, 1), open: make(map[rowraft.Step]*openStep)}
	send := func(rank rowraft.Rank, generation rowraft.Generation, fragment int) *openStep {
		t.Helper()
		o, err := s.addLocked(j, &stepPush{
			StepPart: shard.StepPart{Job: testJob, Generation: generation, Rank: rank, Incarnation: 1, Step: 1}, fragment: fragment, fragments: 2, payload: segmentOf(5, 10*fragment),
		})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	with := wire.RankSet{}
	for rank := range rowraft.Rank(2) {
		send(rank, 1, 0)
		send(rank, 1, 1)
		with.Add(rank)
	}
	gather := func(o *openStep) error {
		_, err := o.gather(&mean{divisor: 2}, &with)
		return err
	}
	if err := gather(send(1, 2, 0)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("with half a part of rank 1: %v, want to wait", err)
	}
	o := send(1, 2, 1)
	with.Add(2) // it has left, without a part here
	if err := gather(o); err != nil {
		t.Errorf("with all of it: %v", err)
	}
}

// Averaging allocates as its buffers grow, and nothing per row.
func TestMeanAllocatesNothingPerRow(t *testing.T) {
	const rows, parts = 20_000, 8
	payloads := make([][]byte, parts)
	for i := range payloads {
		payloads[i] = segmentOf(rows, i)
	}
	got := 0
	m := mean{divisor: parts, limit: rowraft.TargetEntryBytes}
	for i, p := range payloads {
		if err := m.add(p, i); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := m.pieces(func(p meanPiece) error {
		for rest := p.payload; len(rest) > 0; {
			seg, _, next, err := wire.ParseSegment(rest)
			if err != nil {
				return err
			}
			got, rest = got+seg.N, next
		}
		return nil
	})
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; err != nil || n > rows/10 {
		t.Errorf("%d allocations for %d rows of %d parts, %v", n, got, parts, err)
	}
	if want := 2*rows + parts - 2; got != want {
		t.Errorf("%d rows, want the %d of the union", got, want)
	}
}

// Parts that wait for others do not delay a checkpoint's cut, and no step is closed while the cut holds the
// gate.
func TestAHoldWaitsForNoOpenStep(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	a := c.push(cl0, j0, 1, 2)
	c.heldFrom(1, 1)
	c.mu.Lock()
	r := c.replica
	c.mu.Unlock()
	hold, err := r.gate.close(c.ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b := c.push(cl1, j1, 1, 2)
	eventually(t, c.ctx, "the step is whole", func() bool { return c.state().HighestOpen == 1 && len(c.state().WaitingFor) == 0 })
	if s := c.state(); s.LastClosed != 0 {
		t.Errorf("a step was closed under a hold: %v", s)
	}
	hold.release()
	c.want(a, true, 2)
	c.want(b, true, 2)
	c.row(-2)
}

// A part that never becomes complete does not delay workers that continue.
func TestHalfAPartHoldsUpNobody(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	_, err := c.table().PushStep(c.ctx, &rowraftv1.PushStepRequest{
		MapVersion: uint64(c.dial().Map().SlotsVersion), Job: testJob[:], Generation: 1, Rank: 1, Incarnation: 1, Step: 1, Fragments: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	a, b := c.push(cl0, j0, 2, 2), c.push(cl1, j1, 2, 2)
	c.want(a, true, 3)
	c.want(b, true, 3)
	c.want(c.push(cl1, j1, 1, 2), false, 3)
	c.row(-2)
	eventually(t, c.ctx, "no step is open", func() bool { return c.state().HighestOpen == 0 })
}
