package steps

import (
	"runtime"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

var testJob = rowraft.JobID{7, 1, 2, 3, 15: 9}

// roomy is a leader with memory for rows. The tests here log nothing.
type roomy struct{ Leader }

func (roomy) CheckMemory() error { return nil }

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

// The bytes that a leader holds are bounded, for one step and for all. Steps that are not the lowest one get half.
func TestHeldPartsAreBounded(t *testing.T) {
	s := New(3, nil, roomy{})
	j := newJob(testJob)
	s.jobs[testJob] = j
	payload := segmentOf(170_000, 0) // some 3.9 MiB; all parts share it
	push := func(step rowraft.Step, rank rowraft.Rank) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := s.addLocked(j, &Push{StepPart: shard.StepPart{Job: testJob, Generation: 1, Rank: rank, Incarnation: 1,
			Step: step}, Fragments: 1, Payload: payload})
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
		t.Errorf("a step below the lowest one: %v after %d parts", err, n)
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
		t.Errorf("%d bytes are held after all steps ended", s.held)
	}
}

// If many jobs fill the room for open steps, the job that began first continues, then the next one.
func TestTheOldestOfManyStepsIsAdmitted(t *testing.T) {
	s := New(3, nil, roomy{})
	payload := segmentOf(170_000, 0) // some 3.9 MiB; all parts share it
	var jobs []*job
	for i := range 4 {
		j := newJob(rowraft.JobID{byte(i)})
		jobs, s.jobs[j.id] = append(jobs, j), j
	}
	push := func(j *job, step rowraft.Step, rank rowraft.Rank, payload []byte) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := s.addLocked(j, &Push{StepPart: shard.StepPart{Job: j.id, Generation: 1, Rank: rank, Incarnation: 1,
			Step: step}, Fragments: 1, Payload: payload})
		return err
	}
	const workers = 30 // together some 117 MiB
	reached := make([]rowraft.Rank, len(jobs))
	full := func() {
		t.Helper()
		for again := true; again; {
			again = false
			for i, j := range jobs { // one part each, so that all are incomplete when there is no room
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
			t.Fatalf("job %d of 4 has %d of %d parts; all jobs: %d", i, reached[i], workers, reached)
		}
		s.mu.Lock()
		s.endLocked(j, j.open[1], nil)
		s.mu.Unlock()
	}
	if s.held != 0 {
		t.Errorf("%d bytes are held after all steps ended", s.held)
	}

	// Parts without rows use memory, too.
	n := rowraft.Step(1)
	for ; push(jobs[0], n, 0, nil) == nil && n < 2*maxOpenSteps; n++ {
	}
	if n != maxOpenSteps+1 || s.held < maxOpenSteps*(stepHeadBytes+partHeadBytes) {
		t.Errorf("%d empty steps of a job are held, with %d bytes", n-1, s.held)
	}
}

// An entry holds a bounded number of positions: one with more would stop every replica.
func TestPositionsOfAStepAreBounded(t *testing.T) {
	o := &openStep{parts: make(map[rowraft.Rank]*rankPart)}
	with := wire.RankSet{}
	for r := range rowraft.Rank(wire.MaxJobPositions/wire.MaxPushPositions + 1) {
		part := &rankPart{fragments: [][]byte{{}}}
		for i := range rowraft.PositionID(wire.MaxPushPositions) {
			part.positions = append(part.positions, rowraft.Position{ID: rowraft.PositionID(r)*wire.MaxPushPositions + i,
				Offset: 5})
		}
		o.parts[r] = part
		with.Add(r)
	}
	read, err := o.addTo(&Mean{}, &with)
	if err != nil || len(read) != wire.MaxJobPositions || read[0].ID != wire.MaxPushPositions {
		t.Fatalf("%d positions, %v; want the highest %d parts", len(read), err, wire.MaxJobPositions)
	}
	entry := wire.AppendStepEntry(nil, wire.EntryHeader{Version: wire.FirstVersion},
		&wire.Step{Step: 1, Contributors: with, Positions: read})
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
func TestAStepWaitsForAPartThatIsSentAgain(t *testing.T) {
	s := New(3, nil, roomy{})
	j := newJob(testJob)
	send := func(rank rowraft.Rank, generation rowraft.Generation, fragment int) *openStep {
		t.Helper()
		o, err := s.addLocked(j, &Push{
			StepPart: shard.StepPart{Job: testJob, Generation: generation, Rank: rank, Incarnation: 1, Step: 1},
			Fragment: fragment, Fragments: 2, Payload: segmentOf(5, 10*fragment),
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
		_, err := o.addTo(&Mean{Divisor: 2}, &with)
		return err
	}
	if err := gather(send(1, 2, 0)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("with half a part of rank 1: %v, want CodeOverloaded", err)
	}
	o := send(1, 2, 1)
	with.Add(2) // it has left, without a part here
	if err := gather(o); err != nil {
		t.Errorf("with the whole part: %v", err)
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
	m := Mean{Divisor: parts}
	for i, p := range payloads {
		if err := m.Add(p, i); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := m.Pieces(func(p Piece) error {
		for rest := p.Payload; len(rest) > 0; {
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

// A leader remembers a bounded number of ended jobs; it forgets the oldest first.
func TestEndedJobsAreBounded(t *testing.T) {
	s := New(0, nil, nil)
	membership := func(n int) *wire.Membership {
		return &wire.Membership{Job: rowraft.JobID{14: byte(n >> 8), 15: byte(n)}, Generation: 3}
	}
	for n := range maxEndedJobs + 1 {
		for range 2 {
			s.MarkEnded(membership(n).Job, 3)
		}
	}
	if len(s.ended.upTo) != maxEndedJobs || len(s.ended.order) != maxEndedJobs {
		t.Errorf("%d and %d ended jobs are known, want %d", len(s.ended.upTo), len(s.ended.order), maxEndedJobs)
	}
	for n, known := range map[int]bool{0: false, 1: true, maxEndedJobs: true} {
		if err := s.CheckNotEnded(membership(n)); known != (rowraft.CodeOf(err) == rowraft.CodeStaleGeneration) {
			t.Errorf("job %d: %v", n, err)
		}
	}
}
