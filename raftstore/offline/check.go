package offline

import (
	"fmt"

	"github.com/rowraft/rowraft"
)

// Verify reads every entry and snapshot and returns their errors, at most maxFindings.
func (g *Group) Verify() []error {
	errs := append([]error(nil), g.Bad...)
	for i := g.First; i <= g.Last && i > 0 && len(errs) < maxFindings; i++ {
		if _, err := g.Entry(i); err != nil {
			errs = append(errs, err)
		}
	}
	for _, s := range g.Snapshots {
		if _, _, err := g.State(s.ID); err != nil {
			errs = append(errs, err)
		}
	}
	if n := len(g.Snapshots); g.First > 0 && g.First > 1 && (n == 0 || g.Snapshots[0].Index+1 < g.First) {
		errs = append(errs, rowraft.Errorf(rowraft.CodeCorrupt,
			"the log begins at entry %d and no snapshot holds what came before", g.First))
	}
	return errs
}

const maxFindings = 20

// Match compares the logs of two replicas of one group by Raft's log matching property: two entries with the same index
// and term are equal, and so are all entries before them. Entries that a snapshot covers are committed and must be
// equal. Match returns the highest index up to which both logs agree, 0 if they have no entry in common.
//
// Later entries may differ: no client got an acknowledgement for them.
//
// Errors: CodeCorrupt for logs that cannot be of one group.
func Match(a, b *Group) (agree rowraft.Index, err error) {
	first, last := max(a.First, b.First, 1), min(a.Last, b.Last)
	committed := rowraft.Index(0)
	for _, g := range []*Group{a, b} {
		if len(g.Snapshots) > 0 {
			committed = max(committed, g.Snapshots[0].Index)
		}
	}
	for i := last; i >= first; i-- {
		x, y, err := bothAt(a, b, i)
		if err != nil {
			return 0, err
		}
		switch {
		case x.Equal(y):
			agree = max(agree, i)
		case agree > 0 || x.Term == y.Term || i <= committed:
			return 0,
				rowraft.Errorf(rowraft.CodeCorrupt,
					"entry %d differs: %s of term %d and %d bytes, and %s of term %d and %d bytes; %s",
					i, x.Kind, x.Term, len(x.Data), y.Kind, y.Term, len(y.Data), whyOne(agree, committed, i))
		}
	}
	return agree, nil
}

func bothAt(a, b *Group, i rowraft.Index) (x, y Entry, err error) {
	if x, err = a.Entry(i); err == nil {
		y, err = b.Entry(i)
	}
	return x, y, err
}

// whyOne returns the reason why an entry must be equal in both logs.
func whyOne(agree, committed, i rowraft.Index) string {
	switch {
	case agree > 0:
		return fmt.Sprintf("both logs have the same entry %d after it", agree)
	case i <= committed:
		return fmt.Sprintf("a snapshot covers it, which ends at %d", committed)
	}
	return "one term has one entry there"
}
