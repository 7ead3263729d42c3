package route

import (
	"errors"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// codes lists every code that has a name.
func codes() (all []rowraft.Code) {
	for c := rowraft.Code(0); !strings.HasPrefix(c.String(), "Code("); c++ {
		all = append(all, c)
	}
	return all
}

// A new code needs a row in the table, and an action in each layer.
func TestEveryCodeHasAnAction(t *testing.T) {
	all := codes()
	if len(actions) != len(all) {
		t.Fatalf("the table has %d rows, package rowraft has %d codes: give each code a row", len(actions), len(all))
	}
	for _, c := range all {
		for l := range layers {
			if actions[c][l] == 0 {
				t.Errorf("code %s has no action in layer %d", c, l)
			}
		}
	}
}

// The table must agree with what a code promises to any caller: a call is made again only
// where that may help, and twice only where that does no harm.
func TestActionsAgreeWithTheCodes(t *testing.T) {
	ends := func(a Action) bool { return a == Return || a == Late }
	for _, c := range codes() {
		row := actions[c]
		if again := !ends(row[Control]); again != c.Retryable() {
			t.Errorf("%s in layer Control: %s, but Retryable is %v", c, row[Control], c.Retryable())
		}
		if again := !ends(row[Once]); again != (c.Retryable() && !c.MaybeApplied()) {
			t.Errorf("%s in layer Once: %s, but Retryable is %v and MaybeApplied %v", c, row[Once], c.Retryable(),
				c.MaybeApplied())
		}
		for _, l := range []Layer{Table, Replica} { // a server of another cluster may answer at an address of this one
			if again := !ends(row[l]); again != (c.Retryable() || c == rowraft.CodeIdentity) {
				t.Errorf("%s in layer %d: %s, but Retryable is %v", c, l, row[l], c.Retryable())
			}
		}
		for _, l := range []Layer{Batch, Step} { // these see what ends a Table call, or a call whose context ended
			if again := !ends(row[l]); again && row[Table] != Return && row[Table] != Refresh {
				t.Errorf("%s in layer %d: %s, but a Table call does not end with it (%s)", c, l, row[l], row[Table])
			}
		}
	}
}

func TestACodeOfALaterVersionIsUnknown(t *testing.T) {
	for l := range layers {
		if got, want := OnCode(l, 255), OnCode(l, rowraft.CodeUnknown); got != want {
			t.Errorf("layer %d: code 255 gives %s, want %s", l, got, want)
		}
		if got, want := On(l, errors.New("no code")), OnCode(l, rowraft.CodeUnknown); got != want {
			t.Errorf("layer %d: an error without a code gives %s, want %s", l, got, want)
		}
	}
}
