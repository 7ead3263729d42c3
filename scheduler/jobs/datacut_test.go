package jobs

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client/jobs"
)

// A cut has each split of the data at the offset of which its trainer speaks while it stands
// still, those that are ended not at all, and that of one which died from where it was
// heard of last. A run that goes on from there is given exactly the rest.
func TestACutHoldsThePositionOfTheData(t *testing.T) {
	s, c := served(t)
	plan := jobs.SplitPlan{Examples: 1000, SplitExamples: 96, Epochs: 2} // 11 splits an epoch, the last of 40
	members := make([]*jobs.Member, 3)
	for i := range members {
		var err error
		if members[i], err = enter(t, another(t, s), fmt.Sprint("w", i), 3,
			func(e *jobs.Entry) { e.Splits = plan }); err != nil {
			t.Fatal(err)
		}
	}
	take := func(m *jobs.Member, n int64) jobs.Split {
		t.Helper()
		p, err := m.NextSplit(t.Context(), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, lost := take(members[0], 1), take(members[1], 1)
	ended, dead := take(members[0], 2), take(members[2], 1)
	if err := members[0].EndSplit(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	if err := members[2].Leave(t.Context(), jobs.LeaveStopped, "",
		[]jobs.SplitReached{{Epoch: dead.Epoch, Number: dead.Number, Acknowledged: 32, Read: 32}}); err != nil {
		t.Fatal(err)
	}
	for i, splits := range [][]jobs.SplitReached{{{Number: first.Number, Acknowledged: 64, Read: 64}},
		{{Number: lost.Number, Acknowledged: 16, Read: 16}}} {
		at, err := members[i].Register(t.Context(), jobs.Registration{Pause: (&fakeTrainer{
			parts: splits, asked: make(chan struct{}, 1),
		}).pause})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(at.Close)
	}
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ReadData(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []*checkpoint.Splits{{Job: "ctr", Examples: 1000, SplitExamples: 96, Epochs: 2, Split: 4,
		Open: []checkpoint.OpenSplit{
			{Split: uint64(first.Number), Offset: 64}, {Split: uint64(lost.Number), Offset: 16},
			{Split: uint64(dead.Number), Offset: 32},
		}}}
	if !reflect.DeepEqual(m.data, want) {
		t.Errorf("the cut has %+v, want %+v", m.data[0], want[0])
	}
	m.Cancel()

	from := m.data[0]
	from.Job = "again"
	next, err := enter(t, another(t, s), "w", 1, func(e *jobs.Entry) { e.Job, e.Splits, e.From = "again", plan, from })
	if err != nil {
		t.Fatal(err)
	}
	left := map[int64]int64{}
	for n := int64(1); ; n++ {
		p, err := next.NextSplit(t.Context(), n, 0)
		if errors.Is(err, jobs.ErrNoSplits) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		left[p.Epoch] += p.To - p.From - p.Offset
		if err := next.EndSplit(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if want := (map[int64]int64{0: 1000 - 96 - 64 - 16 - 32, 1: 1000}); !reflect.DeepEqual(left, want) {
		t.Errorf("a run that goes on is given %v examples of each epoch, want %v", left, want)
	}
	if least, most, err := jobs.RepeatedExamples(t.Context(), c, "again"); err != nil || least != 0 || most != 0 {
		t.Errorf("%d to %d examples were read again, %v: want none", least, most, err)
	}
}
