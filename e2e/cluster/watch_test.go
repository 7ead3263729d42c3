package cluster

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
)

func TestTwoLeadersOfATermAreNoticed(t *testing.T) {
	w := newWatch(func() int64 { return 0 })
	leads := func(id string, term rowraft.Term) []Replica {
		return []Replica{{Shard: 1, ID: id, Leads: true, Term: term}}
	}
	w.note("n1", leads("r1", 5))
	w.note("n1", leads("r1", 5))
	// One sample is no proof: role and term were read one after the other.
	w.note("n2", leads("r2", 5))
	w.note("n2", leads("r2", 6))
	w.note("n2", leads("r2", 6))
	if got := check.Leaders(w.Seen().Leads); len(got) != 0 {
		t.Errorf("two leaders reported: %v", got)
	}
	if l, ok := w.Leader(1); !ok || l != (Leader{"n2", 6}) {
		t.Errorf("leader %+v", l)
	}
	w.note("n3", leads("r3", 6))
	w.note("n3", leads("r3", 6))
	if got := check.Leaders(w.Seen().Leads); len(got) != 1 {
		t.Errorf("two leaders in term 6: reported %v", got)
	}
}

func TestDigestsAreKept(t *testing.T) {
	w := newWatch(func() int64 { return 0 })
	r := Replica{Shard: 1, ID: "r1"}
	w.noteDigest("n1", r, Digest{Index: 3, Sum: "a"})
	w.noteDigest("n1", r, Digest{Index: 3, Sum: "a"})
	w.noteDigest("n2", Replica{Shard: 1, ID: "r2"}, Digest{Index: 3, Sum: "a"})
	seen := w.Seen().Digests
	if len(seen) != 2 || len(check.Digests(seen)) != 0 || check.Shared(seen) != 1 {
		t.Errorf("two replicas of one digest at index 3, one seen twice: %+v", seen)
	}
	w.noteDigest("n1", r, Digest{Index: 3, Sum: "b"})
	if seen = w.Seen().Digests; len(check.Digests(seen)) != 1 {
		t.Errorf("a replica that changed at one index is not reported: %+v", seen)
	}
}
