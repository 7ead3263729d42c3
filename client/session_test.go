package client

import (
	"context"
	"testing"

	"github.com/rowraft/rowraft"
)

func testSession(maxInFlight int) *shardSession {
	return &shardSession{inc: 1, maxInFlight: maxInFlight, next: 1, ended: make(map[rowraft.Seq]struct{})}
}

func TestNumbersAreDenseAndTheFloorHasNoHoles(t *testing.T) {
	ss := testSession(8)
	for want := rowraft.Seq(1); want <= 4; want++ {
		var p batch
		if err := ss.take(context.Background(), &p); err != nil || p.seq != want {
			t.Fatalf("number %d (%v), want %d", p.seq, err, want)
		}
	}
	for _, tc := range []struct{ answered, floor rowraft.Seq }{{2, 0}, {4, 0}, {1, 2}, {3, 4}} {
		ss.end(tc.answered)
		if _, got := ss.present(); got != uint64(tc.floor) {
			t.Errorf("after the answer to %d the floor is %d, want %d", tc.answered, got, tc.floor)
		}
	}
	if err := ss.idle(context.Background()); err != nil {
		t.Errorf("everything is answered: %v", err)
	}
}

func TestTakeWaitsForAPlaceAndForTheWindow(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	ss := testSession(1)
	var p batch
	if err := ss.take(ended, &p); err != nil {
		t.Fatal(err)
	}
	if err := ss.take(ended, new(batch)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a second part in flight of one: %v, want CodeOverloaded", err)
	}
	got := make(chan error, 1)
	go func() { got <- ss.take(context.Background(), new(batch)) }()
	ss.end(p.seq)
	if err := <-got; err != nil {
		t.Errorf("after an answer: %v", err)
	}

	// One number is never answered: the others advance until the window ends.
	ss = testSession(8)
	if err := ss.take(ended, &p); err != nil {
		t.Fatal(err)
	}
	for {
		var q batch
		if err := ss.take(ended, &q); err != nil {
			break
		}
		ss.end(q.seq)
	}
	if ss.next != window+1 {
		t.Errorf("with number 1 unanswered the next is %d, want %d: the shard remembers a bounded window", ss.next, window+1)
	}
}
