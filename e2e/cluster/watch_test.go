package cluster

import (
	"testing"

	"github.com/rowraft/rowraft"
)

func TestTwoLeadersOfATermAreNoticed(t *testing.T) {
	w := &Watch{previous: make(map[string]map[Lead]bool), leaders: make(map[Lead]map[string]bool), newest: make(map[rowraft.ShardID]Leader)}
	leads := func(term rowraft.Term) []Replica { return []Replica{{Shard: 1, Leads: true, Term: term}} }
	w.note("n1", leads(5))
	w.note("n1", leads(5))
	// One sample is no proof: role and term were read one after the other.
	w.note("n2", leads(5))
	w.note("n2", leads(6))
	w.note("n2", leads(6))
	if got := w.Doubles(); len(got) != 0 {
		t.Errorf("two leaders reported: %v", got)
	}
	if l, ok := w.Leader(1); !ok || l != (Leader{"n2", 6}) {
		t.Errorf("leader %+v", l)
	}
	w.note("n3", leads(6))
	w.note("n3", leads(6))
	if got := w.Doubles(); len(got) != 1 {
		t.Errorf("two leaders in term 6: reported %v", got)
	}
}
