package meta

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func cmdEndSplit(id *rowraftv1.JobIdentity, p *rowraftv1.JobSplit) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndSplit{EndSplit: &rowraftv1.MetaEndSplit{Identity: id,
		Epoch: p.GetEpoch(), Split: p.GetSplit()}}}
}

func cmdSettle(run []byte, splits ...*rowraftv1.SplitSettled) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SettleSplits{
		SettleSplits: &rowraftv1.MetaSettleSplits{Job: "ctr", Run: run, Splits: splits}}}
}

func (a *applier) take(id *rowraftv1.JobIdentity, take uint64) *TakeResult {
	a.t.Helper()
	return a.taken(metacmd.TakeSplit(id, take))
}

func (a *applier) taken(c *rowraftv1.MetaCommand) *TakeResult {
	a.t.Helper()
	got, ok := a.do(c).(*TakeResult)
	if !ok {
		a.t.Fatalf("split number %d was refused", c.GetTakeSplit().GetTake())
	}
	return got
}

// reading is what a shard keeps of how far splits were read.
type reading map[rowraft.PositionID]uint64

// push notes what a push carries of a split.
func (r reading) push(d *rowraftv1.JobData, p *rowraftv1.JobSplit, acknowledged, applied uint64) {
	a, b := rowraft.PositionIDs(p.GetEpoch()*splits(d)+p.GetSplit(), p.GetReading())
	r[a], r[b] = max(r[a], acknowledged), max(r[b], applied)
}

// A split of a worker that is lost is read on by another one, from where it was known to
// be, and what may be read again is counted.
func TestPartsOfTheLostAreGivenAgain(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	one, two := a.enter(metacmd.EnterJob("a", 1, metacmd.WithData(250, 100, 1))).Identity,
		a.enter(metacmd.EnterJob("b", 2, metacmd.WithData(250, 100, 1))).Identity
	p := a.take(one, 1)
	if p.Split.GetSplit() != 0 || p.From != 0 || p.To != 100 {
		t.Fatalf("the first split is %v from %d to %d", p.Split, p.From, p.To)
	}
	if again := a.take(one, 1); again.Split.GetSplit() != 0 {
		t.Errorf("asked again it is split %d", again.Split.GetSplit())
	}
	a.refused(metacmd.TakeSplit(one, 3), rowraft.CodeInvalidArgument, "split number 3", "has had 1")
	q, r := a.take(two, 1), a.take(two, 2)
	if q.Split.GetSplit() != 1 || r.Split.GetSplit() != 2 || r.From != 200 || r.To != 250 {
		t.Fatalf("the next are %v and %v, to %d", q.Split, r.Split, r.To)
	}
	a.ok(cmdEndSplit(two, q.Split))
	a.ok(cmdEndSplit(two, q.Split)) // its answer was lost
	a.ok(cmdEndSplit(two, r.Split))
	if w := a.take(two, 3); !w.Wait || w.Done {
		t.Errorf("with one split open it is told %v", w)
	}
	a.ok(metacmd.LeaveJob(one, lost, &rowraftv1.SplitReached{Split: 0, Acknowledged: 30, Read: 45}))
	a.refused(metacmd.TakeSplit(one, 2), rowraft.CodeSessionExpired, "start it again")
	a.refused(cmdEndSplit(one, p.Split), rowraft.CodeSessionExpired)
	if d := a.m.RunOf("ctr").GetData(); d.GetAgainKnown() != 15 || d.GetAgainMost() != 70 {
		t.Errorf("read again: %d to %d, want 15 to 70", d.GetAgainKnown(), d.GetAgainMost())
	}
	back := a.take(two, 3)
	if back.Split.GetSplit() != 0 || back.Split.GetOffset() != 30 || back.To != 100 {
		t.Fatalf("what came back is %v", back.Split)
	}
	a.ok(cmdEndSplit(two, back.Split))
	if w := a.take(two, 4); !w.Done {
		t.Errorf("at the end it is told %v", w)
	}
	a.ok(metacmd.LeaveJob(two, ended))
	a.wantJob(done, 4)
}

// One that stops says exactly where it is: nothing is read again, and its successor goes on there. It does not know the
// second split: the answer that gave it was lost.
func TestPartsOfTheStoppedGoOn(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	one := a.enter(metacmd.EnterJob("a", 1, metacmd.WithData(250, 100, 1))).Identity
	a.take(one, 1)
	a.take(one, 2)
	a.ok(metacmd.LeaveJob(one, stopped, &rowraftv1.SplitReached{Acknowledged: 64, Read: 64}))
	a.wantJob(jobStopped, 2)
	next := a.enter(metacmd.EnterJob("a", 2, metacmd.WithData(250, 100, 1)))
	if next.Began {
		t.Fatal("it begins again")
	}
	if p := a.take(next.Identity, 1); p.Split.GetSplit() != 0 || p.Split.GetOffset() != 64 {
		t.Errorf("it goes on at %v", p.Split)
	}
	if p := a.take(next.Identity, 2); p.Split.GetSplit() != 1 || p.Split.GetOffset() != 0 {
		t.Errorf("then it goes on at %v", p.Split)
	}
	if d := a.m.RunOf("ctr").GetData(); d.GetAgainKnown() != 0 || d.GetAgainMost() != 0 {
		t.Errorf("read again: %d to %d", d.GetAgainKnown(), d.GetAgainMost())
	}
}

// Each example of each epoch is read to its
// end at least once, and how many were read again lies within what the run says; where the
// shards know what was read, it is that.
func TestEpochsAreCovered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		byRank, inLog := rapid.Bool().Draw(t, "by rank"), rapid.Bool().Draw(t, "in the log")
		a := newApplier(t)
		a.do(cmdInit("c"))
		examples, size, epochs := rapid.IntRange(1, 60).Draw(t, "examples"), rapid.IntRange(1, 25).Draw(t, "size"),
			rapid.IntRange(1, 3).Draw(t, "epochs")
		plan := func(q *rowraftv1.EnterRequest) {
			metacmd.WithData(uint64(examples), uint64(size), uint64(epochs))(q)
			q.Data.ByRank, q.Data.InLog = byRank, inLog
		}
		type worker struct {
			id    *rowraftv1.JobIdentity
			had   uint64
			split *TakeResult // nil: none
			at    uint64      // next example of the split
			acked uint64      // reported
		}
		pushed := make(reading)
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
			if inLog && rapid.IntRange(0, 3).Draw(t, "the shards are asked") == 0 {
				r := a.m.RunOf("ctr")
				settle := cmdSettle(r.GetRun(), SettledSplits(r.GetData(), []ShardPositions{{Read: pushed}})...)
				a.ok(settle)
				if rapid.Bool().Draw(t, "twice") {
					a.ok(settle)
				}
			}
			switch dies := instance < 20 && rapid.IntRange(0, 14).Draw(t, "dies") == 0; {
			case w == nil:
				instance++
				e := a.enter(metacmd.EnterJob([]string{"a", "b"}[i], instance, plan))
				workers[i] = &worker{id: e.Identity}
			case dies:
				var reached []*rowraftv1.SplitReached
				if w.split != nil && rapid.Bool().Draw(t, "known") {
					back := rapid.Uint64Range(0, w.at-w.acked).Draw(t, "unreported")
					reached = append(reached, &rowraftv1.SplitReached{Epoch: w.split.Split.GetEpoch(), Split: w.split.Split.GetSplit(),
						Acknowledged: w.acked, Read: w.at - back})
				}
				if rapid.Bool().Draw(t, "followed at once") { // by a process of its name
					instance++
					workers[i] = &worker{id: a.enter(metacmd.EnterJob([]string{"a", "b"}[i], instance, plan)).Identity}
				} else {
					a.ok(metacmd.LeaveJob(w.id, lost, reached...))
					workers[i] = nil
				}
			case w.split == nil:
				got := a.take(w.id, w.had+1)
				if over = got.Done; !got.Done && !got.Wait {
					w.had++
					at := got.Split.GetOffset()
					w.split, w.at, w.acked = got, at, at
				}
			case w.split.From+w.at == w.split.To:
				for x := w.split.From + w.acked; x < w.split.To; x++ {
					acked[w.split.Split.GetEpoch()][x]++
				}
				a.ok(cmdEndSplit(w.id, w.split.Split))
				w.split = nil
			default:
				read[w.split.Split.GetEpoch()][w.split.From+w.at]++
				w.at++
				pushed.push(a.m.RunOf("ctr").GetData(), w.split.Split, w.acked, w.at)
				if rapid.Bool().Draw(t, "acknowledged") {
					for x := w.split.From + w.acked; x < w.split.From+w.at; x++ {
						acked[w.split.Split.GetEpoch()][x]++
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
		if d := a.m.RunOf("ctr").GetData(); again < d.GetAgainKnown() || again > d.GetAgainMost() {
			t.Fatalf("%d examples were read again, the run says %d to %d", again, d.GetAgainKnown(), d.GetAgainMost())
		} else if inLog && d.GetAgainKnown() != d.GetAgainMost() {
			t.Fatalf("%d examples were read again, the run says %d to %d, and the shards knew", again, d.GetAgainKnown(),
				d.GetAgainMost())
		}
	})
}

// A split that changes hands twice before its second reader has pushed is read again once: the
// shards know who was where.
func TestAPartThatIsTakenAndNotReadCountsOnce(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	plan := func(q *rowraftv1.EnterRequest) {
		metacmd.WithData(100, 100, 1)(q)
		q.Data.InLog = true
	}
	pushed := make(reading)
	settle := func() {
		r := a.m.RunOf("ctr")
		a.ok(cmdSettle(r.GetRun(), SettledSplits(r.GetData(), []ShardPositions{{Read: pushed}})...))
	}
	one := a.enter(metacmd.EnterJob("a", 1, plan)).Identity
	first := a.take(one, 1)
	data := func() *rowraftv1.JobData { return a.m.RunOf("ctr").GetData() }
	pushed.push(data(), first.Split, 16, 24)
	a.ok(metacmd.LeaveJob(one, lost))
	settle()
	two := a.enter(metacmd.EnterJob("a", 2, plan)).Identity
	if p := a.take(two, 1); p.Split.GetOffset() != 16 {
		t.Fatalf("the second reader begins at %v", p.Split)
	}
	a.ok(metacmd.LeaveJob(two, lost))
	settle()
	if d := data(); d.GetAgainKnown() != 8 || d.GetAgainMost() != 8 {
		t.Errorf("read again: %d to %d, want %d", d.GetAgainKnown(), d.GetAgainMost(), 8)
	}
	// The third one reads what the first has, and dies, too.
	three := a.enter(metacmd.EnterJob("a", 3, plan)).Identity
	p := a.take(three, 1)
	pushed.push(data(), p.Split, 16, 24)
	a.ok(metacmd.LeaveJob(three, lost))
	settle()
	if d := data(); d.GetAgainKnown() != 16 || d.GetAgainMost() != 16 {
		t.Errorf("read again by a third one: %d to %d, want %d", d.GetAgainKnown(), d.GetAgainMost(), 16)
	}
	again := New(NewView())
	if err := again.Restore(bytes.NewReader(snapshotBytes(t, a.m))); err != nil ||
		again.RunOf("ctr").GetData().GetOpen()[0].GetReading() != p.Split.GetReading() {
		t.Errorf("a snapshot has reading %v, %v; want %d", again.RunOf("ctr").GetData().GetOpen(), err, p.Split.GetReading())
	}
}

// Parts that are dealt by rank are read by the same workers in any order of requests; those of
// a worker that does not train by the next worker that asks.
func TestPartsAreDealtByRank(t *testing.T) {
	plan := func(q *rowraftv1.EnterRequest) {
		metacmd.WithData(50, 10, 2)(q)
		q.Data.ByRank = true
	}
	whose := func(order []int) (had [2][]uint64) {
		a := newApplier(t)
		a.do(cmdInit("c"))
		ids := []*rowraftv1.JobIdentity{a.enter(metacmd.EnterJob("a", 1, plan)).Identity,
			a.enter(metacmd.EnterJob("b", 2, plan)).Identity}
		for _, i := range order {
			p := a.take(ids[i], uint64(len(had[i])+1))
			if p.Split == nil {
				t.Fatalf("%v: worker %d is told %+v", order, i, p)
			}
			had[i] = append(had[i], 10*p.Split.GetEpoch()+p.Split.GetSplit())
			a.ok(cmdEndSplit(ids[i], p.Split))
		}
		if last := a.take(ids[1], 6); !last.Done {
			t.Errorf("%v: at the end it is told %+v", order, last)
		}
		return had
	}
	want := [2][]uint64{{0, 2, 4, 11, 13}, {1, 3, 10, 12, 14}}
	for _, order := range [][]int{{0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, {1, 1, 1, 0, 0, 1, 0, 1, 0, 0},
		{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}} {
		if got := whose(order); !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
			t.Errorf("asking in the order %v they have %v, want %v", order, got, want)
		}
	}

	a := newApplier(t)
	a.do(cmdInit("c"))
	one, two := a.enter(metacmd.EnterJob("a", 1, plan)).Identity, a.enter(metacmd.EnterJob("b", 2, plan)).Identity
	if p := a.take(two, 1); p.Split.GetSplit() != 1 {
		t.Fatalf("rank 1 has %v", p.Split)
	}
	a.ok(metacmd.LeaveJob(one, lost))
	if p := a.take(two, 2); p.Split.GetSplit() != 0 {
		t.Errorf("without rank 0, rank 1 has %v", p.Split)
	}
}

// What a worker that is gone has read is given to no worker before the shards were asked, and
// it is read from where they say.
func TestPartsAreSettledFirst(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	plan := func(q *rowraftv1.EnterRequest) {
		metacmd.WithData(100, 100, 1)(q)
		q.Data.InLog = true
	}
	one, two := a.enter(metacmd.EnterJob("a", 1, plan)).Identity, a.enter(metacmd.EnterJob("b", 2, plan)).Identity
	a.take(one, 1)
	a.ok(metacmd.LeaveJob(one, lost, &rowraftv1.SplitReached{Acknowledged: 20, Read: 30}))
	if w := a.take(two, 1); !w.Wait {
		t.Fatalf("before it is settled it is told %+v", w)
	}
	at := &rowraftv1.SplitSettled{Incarnation: one.GetIncarnation() + 100, Acknowledged: 90, Applied: 90}
	a.ok(cmdSettle(one.GetRun(), at)) // of another run
	if w := a.take(two, 1); !w.Wait {
		t.Fatalf("with another one settled it is told %+v", w)
	}
	at.Incarnation, at.Acknowledged, at.Applied = one.GetIncarnation(), 48, 64
	a.ok(cmdSettle(one.GetRun(), at))
	if p := a.take(two, 1); p.Split.GetOffset() != 48 {
		t.Errorf("it goes on at %v, want 48", p.Split)
	}
	if d := a.m.RunOf("ctr").GetData(); d.GetAgainKnown() != 16 || d.GetAgainMost() != 16 {
		t.Errorf("read again: %d to %d, want 16", d.GetAgainKnown(), d.GetAgainMost())
	}
	a.ok(metacmd.LeaveJob(two, lost))
	a.ok(cmdSettle(two.GetRun(), &rowraftv1.SplitSettled{Incarnation: two.GetIncarnation(), Unknown: true}))
	if d := a.m.RunOf("ctr").GetData(); d.GetAgainKnown() != 16 || d.GetAgainMost() != 16+52 {
		t.Errorf("read again: %d to %d, want 16 to 68", d.GetAgainKnown(), d.GetAgainMost())
	}
}

// A push is made of a split for each shard. A batch of which any shard has applied one counts
// as applied, and what one shard may have forgotten is not known.
func TestABatchThatOneShardHasCountsAsRead(t *testing.T) {
	d := &rowraftv1.JobData{Examples: 100, SplitExamples: 100, Open: []*rowraftv1.JobSplit{{Unsettled: 7, Reading: 2}}}
	at := func(acknowledged, applied uint64) ShardPositions {
		s := ShardPositions{Read: make(reading)}
		reading(s.Read).push(d, d.Open[0], acknowledged, applied)
		return s
	}
	none, forgot := ShardPositions{}, ShardPositions{Full: true}
	for name, tc := range map[string]struct {
		shards                []ShardPositions
		acknowledged, applied uint64
		unknown               bool
	}{
		"all shards have it":               {[]ShardPositions{at(8, 16), at(8, 16)}, 8, 16, false},
		"one shard alone has it":           {[]ShardPositions{at(8, 16), at(16, 24), at(8, 16)}, 16, 24, false},
		"none has heard of the split":      {[]ShardPositions{none, none}, 0, 0, false},
		"one has no rows of it":            {[]ShardPositions{none, at(0, 8)}, 0, 8, false},
		"one may have forgotten the split": {[]ShardPositions{at(8, 16), forgot}, 8, 16, true},
	} {
		got := SettledSplits(d, tc.shards)
		if len(got) != 1 || got[0].GetAcknowledged() != tc.acknowledged || got[0].GetApplied() != tc.applied ||
			got[0].GetUnknown() != tc.unknown {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A trainer dies while the scheduler is away. It has trained splits whose ends it could not tell, one of them taken
// ahead, and has begun another one. The others get all of them, from where the last beat or the shards say that it was,
// and what is read again is within what the run says. The ends of splits that the other one trained meanwhile arrive
// late and count.
func TestATrainerDiesWhileTheSchedulerIsAway(t *testing.T) {
	for name, tc := range map[string]struct {
		inLog       bool
		beat        []*rowraftv1.SplitReached
		want        []uint64 // where the other one goes on in splits 0, 1 and 2
		known, most uint64   // examples that are read again
	}{
		"its last beat is known": {false, []*rowraftv1.SplitReached{{Split: 0, Acknowledged: 30, Read: 40}, {Split: 1},
			{Split: 2}}, []uint64{30, 0, 0}, 10, 270},
		"the scheduler has heard no beat": {false, nil, []uint64{0, 0, 0}, 0, 300},
		"the shards know where it was":    {true, nil, []uint64{100, 100, 48}, 2, 2},
		"the shards know more than a beat": {true, []*rowraftv1.SplitReached{{Split: 0, Acknowledged: 30, Read: 40},
			{Split: 1},
			{Split: 2}}, []uint64{100, 100, 48}, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApplier(t)
			a.do(cmdInit("c"))
			plan := func(q *rowraftv1.EnterRequest) {
				metacmd.WithData(500, 100, 1)(q)
				q.Data.InLog = tc.inLog
			}
			one, two := a.enter(metacmd.EnterJob("a", 1, plan)).Identity, a.enter(metacmd.EnterJob("b", 2, plan)).Identity
			var had []*rowraftv1.JobSplit
			for take := range uint64(3) { // it reads the first
				had = append(had, a.taken(metacmd.TakeSplit(one, take+1)).Split)
			}
			meanwhile := []*rowraftv1.JobSplit{
				a.taken(metacmd.TakeSplit(two, 1)).Split,
				a.taken(metacmd.TakeSplit(two, 2)).Split,
			}
			data := func() *rowraftv1.JobData { return a.m.RunOf("ctr").GetData() }
			trained, pushed := []uint64{100, 100, 50}, make(reading)
			for i, p := range had {
				pushed.push(data(), p, []uint64{100, 100, 48}[i], trained[i])
			}
			a.ok(cmdEndSplit(two, had[1])) // not its own: nothing
			a.ok(metacmd.LeaveJob(one, lost, tc.beat...))
			a.refused(cmdEndSplit(one, had[0]), rowraft.CodeSessionExpired) // it was on its way for long
			for _, p := range meanwhile {
				a.ok(cmdEndSplit(two, p))
			}
			if tc.inLog {
				if w := a.taken(metacmd.TakeSplit(two, 3)); !w.Wait {
					t.Errorf("before the shards are asked the other one is told %v", w)
				}
				a.ok(cmdSettle(one.GetRun(), SettledSplits(data(), []ShardPositions{{Read: pushed}})...))
			}
			again := uint64(0)
			for i, want := range tc.want {
				p := a.taken(metacmd.TakeSplit(two, uint64(i)+3))
				if p.Split.GetSplit() != uint64(i) || p.Split.GetOffset() != want {
					t.Fatalf("the other one goes on at %v, want split %d from %d", p.Split, i, want)
				}
				again += trained[i] - min(trained[i], p.Split.GetOffset())
				a.ok(cmdEndSplit(two, p.Split))
			}
			if d := data(); d.GetAgainKnown() != tc.known || d.GetAgainMost() != tc.most || again < tc.known || again > tc.most {
				t.Errorf("%d examples are read again, the run says %d to %d, want %d to %d", again, d.GetAgainKnown(),
					d.GetAgainMost(), tc.known, tc.most)
			}
			if w := a.taken(metacmd.TakeSplit(two, 6)); !w.Done {
				t.Errorf("at the end it is told %v", w)
			}
		})
	}
}

// Near the end of the data a member that asks ahead waits, so that those who have nothing to read get the last splits;
// where splits are dealt by rank each has its own.
func TestTheLastPartsAreNotTakenAhead(t *testing.T) {
	for _, tc := range []struct {
		epoch, epochs uint64
		byRank        bool
		open          int // splits whose reader left
		ahead         uint32
		want          bool
	}{
		{0, 1, false, 0, 1, false}, // ten splits are free
		{0, 0, false, 0, 1, false}, // without an end
		{1, 1, false, 0, 1, true},
		{1, 1, false, 2, 1, true},
		{1, 1, false, 3, 1, false},
		{1, 1, false, 2, 0, false},
		{0, 1 << 48, false, 0, 2, false},
		{1, 1, true, 2, 1, false},
	} {
		id := &rowraftv1.JobIdentity{Job: "ctr", Run: []byte("0123456789abcdef"), Incarnation: 5}
		r := &rowraftv1.MetaRun{Job: "ctr", Run: id.Run, Workers: 2, State: rowraftv1.JobState_JOB_STATE_RUNNING,
			Data: &rowraftv1.JobData{Examples: 100, SplitExamples: 10, Epochs: tc.epochs, Epoch: tc.epoch, ByRank: tc.byRank}}
		for rank := range uint32(2) {
			r.Members = append(r.Members, &rowraftv1.RunMember{Rank: rank, Incarnation: 5 + uint64(rank),
				State: rowraftv1.MemberState_MEMBER_STATE_TRAINING})
		}
		for split := range uint64(tc.open) {
			r.Data.Open = append(r.Data.Open, &rowraftv1.JobSplit{Split: split})
		}
		m := &Machine{state: &state{}}
		m.state.registry.putRun(r)
		if got := m.MustWait(&rowraftv1.NextSplitRequest{Identity: id, Take: 1, Ahead: tc.ahead}); got != tc.want {
			t.Errorf("%+v: must wait %v", tc, got)
		}
	}
}
