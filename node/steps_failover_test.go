package node

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/steps"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// wideDim makes a few rows fill a piece.
const wideDim = 128

func wideTable() rowraft.Schema {
	s := counterSchema("wide")
	s.Dim = wideDim
	return s
}

// manyRows returns gradients of one worker that fill several pieces.
func manyRows(rank rowraft.Rank, step rowraft.Step) (keys []rowraft.Key, values []float32) {
	rng := rand.New(rand.NewPCG(uint64(rank), uint64(step)))
	for k := range rowraft.Key(3000) {
		if rng.Uint64()%2 == 0 {
			keys = append(keys, k)
			for range wideDim {
				values = append(values, float32(rng.NormFloat64()))
			}
		}
	}
	return keys, values
}

// firstPiece logs the first piece of step 1 with the parts of the lowest ranks, like a leader that died
// then. It returns the last key of the piece and the total number of pieces.
func (c *stepCluster) firstPiece(table *client.Table, workers int) (last rowraft.Key, pieces int) {
	c.t.Helper()
	c.mu.Lock()
	r := c.replica
	c.mu.Unlock()
	m := steps.Mean{Divisor: float32(workers)}
	first := wire.Step{Job: testJob, Generation: 1, Step: 1}
	for rank := range rowraft.Rank(workers) {
		first.Contributors.Add(rank)
		keys, values := manyRows(rank, 1)
		seg := wire.Segment{Table: table.Schema().ID, N: len(keys), Dim: wideDim, DType: rowraft.Float32}
		payload := make([]byte, seg.Size())
		body := seg.Put(payload)
		for i, k := range keys {
			body.Keys[8*i], body.Keys[8*i+1], body.Keys[8*i+2] = byte(k), byte(k>>8), byte(k>>16)
		}
		wire.PutFloats(body.Values, rowraft.Float32, values)
		if err := m.Add(payload, int(rank)); err != nil {
			c.t.Fatal(err)
		}
	}
	err := m.Pieces(func(p steps.Piece) error {
		if pieces++; pieces > 1 {
			if pieces == 2 {
				last = p.AfterKey
			}
			return nil
		}
		first.Payload = p.Payload
		err := r.propose(c.ctx, func(h wire.EntryHeader) []byte { return wire.AppendStepEntry(nil, h, &first) })
		return err
	})
	if err != nil || pieces < 3 {
		c.t.Fatalf("%d pieces, %v", pieces, err)
	}
	return last, pieces
}

// pushMany begins to push manyRows of step 1.
func (c *stepCluster) pushMany(generation rowraft.Generation, rank rowraft.Rank) *pushed {
	c.t.Helper()
	cl, j := c.worker(generation, rank, 1)
	own, err := cl.Table(c.ctx, "wide")
	if err != nil {
		c.t.Fatal(err)
	}
	keys, values := manyRows(rank, 1)
	p := &pushed{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.result, p.err = j.PushStep(c.ctx, 1, nil, client.Segment{Table: own, Keys: keys, Values: values})
	}()
	return p
}

// A leader that dies between two pieces leaves a step half applied. The next leader continues after the
// last applied row, with the same contributors, after they have sent their parts again. The rows are bit
// for bit those of an undisturbed step.
func TestAStepGoesOnAfterItsLastPiece(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1, Quorum: 2}, 1, 1, 1)
	table, err := c.dial().CreateTable(c.ctx, wideTable(), false)
	if err != nil {
		t.Fatal(err)
	}
	_, pieces := c.firstPiece(table, 2)
	if s := c.state(); s.HighestOpen != 1 { // a generation must begin above it
		t.Errorf("with a piece of step 1 in the log, step %d is the highest that is open", s.HighestOpen)
	}

	// Rank 2 did not contribute and does not now. Two parts are there, and the step waits for more.
	late, one := c.pushMany(1, 2), c.pushMany(1, 1)
	c.heldFrom(1, 0)
	other := c.pushMany(1, 0)
	c.want(one, true, 2)
	c.want(other, true, 2)
	c.want(late, false, 2)
	c.wantRows(c.ctx, "wide", expected(2, 1, wideDim, manyRows))
	if len(c.steps) != pieces {
		t.Errorf("%d pieces were logged, want %d", len(c.steps), pieces)
	}
}

// A leader dies between two pieces of a step, and one contributor dies with it. The membership without that
// contributor waits until the others have sent their parts again, including those that already know the
// membership. If they were told that the step was closed without them, they would push its first pieces a
// second time.
func TestAMembershipWaitsForAStepThatIsOpenInTheLog(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1, 1, 1)
	table, err := c.dial().CreateTable(c.ctx, wideTable(), false)
	if err != nil {
		t.Fatal(err)
	}
	last, _ := c.firstPiece(table, 3)
	next := &rowraftv1.EnsureJobRequest{Job: testJob[:], Generation: 2, FirstStep: 2, Members: []*rowraftv1.JobMember{
		{Rank: 0, Incarnation: 1}, {Rank: 1, Incarnation: 1}, {Rank: 3, Incarnation: 1},
	}}
	ensure := func() error {
		_, err := c.admin(0).EnsureJob(c.ctx, next)
		return err
	}
	if err := ensure(); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Fatalf("before anybody has sent its part again: %v, want Overloaded", err)
	}
	zero := c.pushMany(1, 0)
	c.heldFrom(1, 1, 2, 3)
	if err := ensure(); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Fatalf("before rank 1 has sent its part again: %v, want Overloaded", err)
	}
	one, three := c.pushMany(2, 1), c.pushMany(1, 3)
	testutil.Eventually(t, "the membership is there", func() bool { return ensure() == nil })
	c.want(zero, true, 2)
	c.want(one, true, 2)
	c.want(three, false, 2)
	rows := expected(3, 1, wideDim, manyRows)
	behind := expected(2, 1, wideDim, manyRows)
	for key := range rows {
		if key > last { // of ranks 0 and 1
			delete(rows, key)
		}
	}
	for key, row := range behind {
		if key > last {
			rows[key] = row
		}
	}
	c.wantRows(c.ctx, "wide", rows)
	if s := c.state(); s.Generation != 2 || s.LastClosed != 1 {
		t.Errorf("the shard knows %v", s)
	}
}

// A step is open in the log, and all its contributors have left. It is closed with the applied rows and
// delays no later step.
func TestAStepThatAllHaveGivenUp(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	table, err := c.dial().Table(c.ctx, "emb")
	if err != nil {
		t.Fatal(err)
	}
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32}
	first := wire.Step{Job: testJob, Generation: 1, Step: 1, Payload: make([]byte, seg.Size())}
	body := seg.Put(first.Payload)
	body.Keys[0] = 1
	wire.PutFloats(body.Values, rowraft.Float32, []float32{3, 3, 3, 3})
	first.Contributors.Add(0)
	first.Contributors.Add(1)
	c.mu.Lock()
	r := c.replica
	c.mu.Unlock()
	if err := r.propose(c.ctx, func(h wire.EntryHeader) []byte {
		return wire.AppendStepEntry(nil, h,
			&first)
	}); err != nil {
		t.Fatal(err)
	}
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	a := c.push(cl0, j0, 2, 2)
	c.heldFrom(2, 1)
	b := c.push(cl1, j1, 2, 2)
	c.want(a, true, 3)
	c.want(b, true, 3)
	c.row(-5)
}

// The leader of a shard changes while steps of several pieces are closed. The rows are bit for bit those of
// a run without changes.
func TestLargeStepsSurviveChangesOfTheLead(t *testing.T) {
	const workers, steps = 2, 6
	c := startCluster(t, 3, 1)
	ctx := testutil.Context(t)
	if _, err := c.dial().CreateTable(ctx, wideTable(), false); err != nil {
		t.Fatal(err)
	}
	c.ensureJob(ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, slices.Repeat([]uint64{1}, workers)...)
	admins := []rowraftv1.ReplicasClient{c.admin(0), c.admin(1), c.admin(2)}
	var wg sync.WaitGroup
	began := make(chan rowraft.Step, steps)
	for r := range workers {
		cl, job := c.worker(1, rowraft.Rank(r), 1)
		table, err := cl.Table(ctx, "wide")
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for step := rowraft.Step(1); step <= steps; step++ {
				keys, values := manyRows(rowraft.Rank(r), step)
				if r == 0 {
					began <- step
				}
				result, err := job.PushStep(ctx, step, nil, client.Segment{Table: table, Keys: keys, Values: values})
				if err != nil || len(result.Late) > 0 || result.Next != step+1 {
					t.Errorf("worker %d, step %d: %+v, %v", r, step, result, err)
					return
				}
			}
		})
	}
	go func() { wg.Wait(); close(began) }()
	for step := range began { // while a step is pushed
		if _, err := c.transfer(ctx, admins, 0, ""); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
	}
	c.wantRows(ctx, "wide", expected(workers, steps, wideDim, manyRows))
	c.sameDigests(ctx, 0)
}

// Pushes carry clocks and positions exactly once, and these outlive a restart. Workers wait for the slowest
// clock.
func TestClocksAndPositions(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	_, j1 := c.worker(1, 1, 1)
	table, err := cl0.Table(c.ctx, "emb")
	if err != nil {
		t.Fatal(err)
	}
	at := func(part rowraft.PositionID, offset uint64) []rowraft.Position {
		return []rowraft.Position{{ID: part, Offset: offset}}
	}
	ack, err := j0.PushClock(c.ctx, 5, at(7, 100), client.Segment{Table: table, Keys: []rowraft.Key{1},
		Values: []float32{1, 1, 1, 1}})
	if err != nil || ack.Slowest != 0 {
		t.Fatalf("%+v, %v", ack, err)
	}
	reached := make(chan uint64, 1)
	go func() {
		slowest, err := j0.WaitClock(c.ctx, 3)
		if err != nil {
			t.Error(err)
		}
		reached <- slowest
	}()
	for clock := range uint64(4) {
		if ack, err = j1.PushClock(c.ctx, clock, at(8, 10*clock)); err != nil || ack.Slowest != clock {
			t.Fatalf("%+v, %v", ack, err)
		}
	}
	if got := <-reached; got != 3 {
		t.Errorf("WaitClock(3) = %d", got)
	}
	if _, err := j1.PushClock(c.ctx, 1, at(8, 1)); err != nil { // neither clocks nor positions fall
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		s := c.state()
		if len(s.Members) != 2 || s.Members[0].Clock != 5 || s.Members[1].Clock != 3 || len(s.Positions) != 2 ||
			s.Positions[0].Id != 7 || s.Positions[0].Offset != 100 || s.Positions[1].Offset != 30 {
			t.Errorf("the shard knows %v", s)
		}
	}
	check()
	c.row(-1)
	c.stopNode(0)
	c.restart(0)
	check()

	// A worker that returns begins at the slowest clock, and its old incarnation is refused.
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 2, FirstStep: 1}, 2, 1)
	if s := c.state(); s.Members[0].Clock != 3 || s.Members[1].Clock != 3 {
		t.Errorf("clocks %v, want 3 and 3", s.Members)
	}
	if _, err := j0.PushClock(c.ctx, 9, nil, client.Segment{Table: table, Keys: []rowraft.Key{1},
		Values: []float32{1, 1, 1, 1}}); rowraft.CodeOf(err) != rowraft.CodeNotMember {
		t.Errorf("a clock of an old incarnation: %v, want NotMember", err)
	}
	c.row(-1)
	// Positions of a step count when it is closed.
	_, back := c.worker(2, 0, 2)
	var wg sync.WaitGroup
	for i, j := range []*client.Job{back, j1} {
		wg.Go(func() {
			if _, err := j.PushStep(c.ctx, 1, at(rowraft.PositionID(8+i), 50)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := c.state(); len(s.Positions) != 3 || s.Positions[1].Offset != 50 || s.Positions[2].Id != 9 ||
		s.LastClosed != 1 {
		t.Errorf("after a step the shard knows %v", s)
	}
}
