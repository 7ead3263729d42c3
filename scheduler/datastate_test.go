package scheduler

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func cmdTake(id *rowraftv1.JobIdentity, take uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_TakePart{TakePart: &rowraftv1.MetaTakePart{Identity: id, Take: take}}}
}

func cmdEndPart(id *rowraftv1.JobIdentity, p *rowraftv1.JobPart) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndPart{EndPart: &rowraftv1.MetaEndPart{Identity: id, Epoch: p.GetEpoch(), Part: p.GetPart()}}}
}

func divided(examples, part, epochs uint64) func(*rowraftv1.EnterRequest) {
	return func(q *rowraftv1.EnterRequest) {
		q.Data = &rowraftv1.JobData{Examples: examples, PartExamples: part, Epochs: epochs}
	}
}

func (a *applier) take(id *rowraftv1.JobIdentity, take uint64) *taken {
	a.t.Helper()
	got, ok := a.do(cmdTake(id, take)).(*taken)
	if !ok {
		a.t.Fatalf("part number %d was refused", take)
	}
	return got
}

// A part of a worker that is lost is read on by another one, from where it was known to
// be, and what may be read again is counted.
func TestPartsOfTheLostAreGivenAgain(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	one, two := a.enter(cmdEnter("a", 1, divided(250, 100, 1))).identity, a.enter(cmdEnter("b", 2, divided(250, 100, 1))).identity
	p := a.take(one, 1)
	if p.part.GetPart() != 0 || p.from != 0 || p.to != 100 {
		t.Fatalf("the first part is %v from %d to %d", p.part, p.from, p.to)
	}
	if again := a.take(one, 1); again.part.GetPart() != 0 {
		t.Errorf("asked again it is part %d", again.part.GetPart())
	}
	a.refused(cmdTake(one, 3), rowraft.CodeInvalidArgument, "part number 3", "has had 1")
	q, r := a.take(two, 1), a.take(two, 2)
	if q.part.GetPart() != 1 || r.part.GetPart() != 2 || r.from != 200 || r.to != 250 {
		t.Fatalf("the next are %v and %v, to %d", q.part, r.part, r.to)
	}
	a.ok(cmdEndPart(two, q.part))
	a.ok(cmdEndPart(two, q.part)) // its answer was lost
	a.ok(cmdEndPart(two, r.part))
	if w := a.take(two, 3); !w.wait || w.done {
		t.Errorf("with one part open it is told %v", w)
	}
	a.ok(cmdLeaveJob(one, lost, &rowraftv1.PartReached{Part: 0, Acknowledged: 30, Read: 45}))
	a.refused(cmdTake(one, 2), rowraft.CodeSessionExpired, "start it again")
	a.refused(cmdEndPart(one, p.part), rowraft.CodeSessionExpired)
	if d := a.m.runOf("ctr").GetData(); d.GetAgainKnown() != 15 || d.GetAgainMost() != 70 {
		t.Errorf("read again: %d to %d, want 15 to 70", d.GetAgainKnown(), d.GetAgainMost())
	}
	back := a.take(two, 3)
	if back.part.GetPart() != 0 || back.part.GetOffset() != 30 || back.to != 100 {
		t.Fatalf("what came back is %v", back.part)
	}
	a.ok(cmdEndPart(two, back.part))
	if w := a.take(two, 4); !w.done {
		t.Errorf("at the end it is told %v", w)
	}
	a.ok(cmdLeaveJob(two, ended))
	a.wantJob(done, 4)
}

// One that stops says exactly where it is: nothing is read again, and its successor
// goes on there.
func TestPartsOfTheStoppedGoOn(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	one := a.enter(cmdEnter("a", 1, divided(250, 100, 1))).identity
	a.take(one, 1)
	a.ok(cmdLeaveJob(one, stopped, &rowraftv1.PartReached{Acknowledged: 64, Read: 64, Exact: true}))
	a.wantJob(jobStopped, 2)
	next := a.enter(cmdEnter("a", 2, divided(250, 100, 1)))
	if next.began {
		t.Fatal("it begins anew")
	}
	if p := a.take(next.identity, 1); p.part.GetPart() != 0 || p.part.GetOffset() != 64 {
		t.Errorf("it goes on at %v", p.part)
	}
	if d := a.m.runOf("ctr").GetData(); d.GetAgainKnown() != 0 || d.GetAgainMost() != 0 {
		t.Errorf("read again: %d to %d", d.GetAgainKnown(), d.GetAgainMost())
	}
}

// Whoever dies, and whatever was known of it: each example of each epoch is read to its
// end at least once, and how many were read again lies within what the run says.
func TestEpochsAreCovered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newApplier(t)
		a.do(cmdInit("c"))
		examples, size, epochs := rapid.IntRange(1, 60).Draw(t, "examples"), rapid.IntRange(1, 25).Draw(t, "size"), rapid.IntRange(1, 3).Draw(t, "epochs")
		plan := divided(uint64(examples), uint64(size), uint64(epochs))
		type worker struct {
			id    *rowraftv1.JobIdentity
			had   uint64
			part  *taken // nil: none
			at    uint64 // next example of the part
			acked uint64 // reported
		}
		acked, read := make([][]int, epochs), make([][]int, epochs)
		for e := range acked {
			acked[e], read[e] = make([]int, examples), make([]int, examples)
		}
		workers := []*worker{nil, nil}
		instance := byte(0)
		over := false
		for step := 0; !over; step++ {
			if step > 5000 {
				t.Fatal("it does not end")
			}
			i := rapid.IntRange(0, 1).Draw(t, "worker")
			w := workers[i]
			switch dies := instance < 20 && rapid.IntRange(0, 14).Draw(t, "dies") == 0; {
			case w == nil:
				instance++
				e := a.enter(cmdEnter([]string{"a", "b"}[i], instance, plan))
				workers[i] = &worker{id: e.identity}
			case dies:
				var reached []*rowraftv1.PartReached
				if w.part != nil && rapid.Bool().Draw(t, "known") {
					back := rapid.Uint64Range(0, w.at-w.acked).Draw(t, "unreported")
					reached = append(reached, &rowraftv1.PartReached{Epoch: w.part.part.GetEpoch(), Part: w.part.part.GetPart(), Acknowledged: w.acked, Read: w.at - back})
				}
				if rapid.Bool().Draw(t, "followed at once") { // by a process of its name
					instance++
					workers[i] = &worker{id: a.enter(cmdEnter([]string{"a", "b"}[i], instance, plan)).identity}
				} else {
					a.ok(cmdLeaveJob(w.id, lost, reached...))
					workers[i] = nil
				}
			case w.part == nil:
				got := a.take(w.id, w.had+1)
				if over = got.done; !got.done && !got.wait {
					w.had++
					w.part, w.at, w.acked = got, got.part.GetOffset(), got.part.GetOffset()
				}
			case w.part.from+w.at == w.part.to:
				for x := w.part.from + w.acked; x < w.part.to; x++ {
					acked[w.part.part.GetEpoch()][x]++
				}
				a.ok(cmdEndPart(w.id, w.part.part))
				w.part = nil
			default:
				read[w.part.part.GetEpoch()][w.part.from+w.at]++
				w.at++
				if rapid.Bool().Draw(t, "acknowledged") {
					for x := w.part.from + w.acked; x < w.part.from+w.at; x++ {
						acked[w.part.part.GetEpoch()][x]++
					}
					w.acked = w.at
				}
			}
		}
		again := uint64(0)
		for e := range acked {
			for x := range acked[e] {
				if acked[e][x] == 0 {
					t.Fatalf("example %d of epoch %d was never trained", x, e)
				}
				again += uint64(read[e][x] - 1)
			}
		}
		if d := a.m.runOf("ctr").GetData(); again < d.GetAgainKnown() || again > d.GetAgainMost() {
			t.Fatalf("%d examples were read again, the run says %d to %d", again, d.GetAgainKnown(), d.GetAgainMost())
		}
	})
}
