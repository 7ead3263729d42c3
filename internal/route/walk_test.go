package route

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
)

// TestWalk gives a walk over the places a, b and c the answers of a call, and checks which
// addresses it asks. A number before an address is a pause before that try, in rounds of
// the back-off.
func TestWalk(t *testing.T) {
	code := func(c rowraft.Code) error { return rowraft.Errorf(c, "refused") }
	leader := func(node string) error { return &rowraft.NotLeaderError{Leader: rowraft.NodeID(node)} }
	busy := &rowraft.OverloadedError{What: "busy", RetryAfter: time.Hour}
	for _, tc := range []struct {
		name    string
		layer   Layer
		answers []error
		want    []string // the last is "end" if the walk is over
	}{
		{"a round without a pause, then another", Control, []error{code(rowraft.CodeNoLeader), code(rowraft.CodeStarting), code(rowraft.CodeUnknown), code(rowraft.CodeDeadline)}, []string{"a", "b", "c", "5ms a", "b"}},
		{"a hint is followed at once", Control, []error{leader("c"), code(rowraft.CodeNoLeader)}, []string{"a", "c", "b"}},
		{"a hint to a server without an address", Control, []error{leader("x")}, []string{"a", "b"}},
		{"no hint, and a hint to the server itself", Control, []error{leader(""), leader("b")}, []string{"a", "b", "c"}},
		{"servers that name each other", Control, []error{leader("b"), leader("a"), leader("b"), leader("a"), leader("a"), leader("b"), leader("a"), leader("b")}, []string{"a", "b", "a", "b", "5ms b", "a", "b", "a", "5ms c"}},
		{"an overloaded server is asked again when it says", Control, []error{busy, code(rowraft.CodeNoLeader)}, []string{"a", "1h0m0s a", "b"}},
		{"a final error", Control, []error{code(rowraft.CodeNoLeader), code(rowraft.CodeInvalidArgument)}, []string{"a", "b", "end"}},
		{"an error of a call that may not be made twice", Once, []error{code(rowraft.CodeNoLeader), code(rowraft.CodeDeadline)}, []string{"a", "b", "end"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := Walk{Layer: tc.layer, Places: func() []string { return []string{"a", "b", "c"} }, AddrOf: func(n rowraft.NodeID) string {
					if n == "x" {
						return ""
					}
					return string(n)
				}}
				got := []string{w.Addr()}
				for _, err := range tc.answers {
					begin := time.Now()
					if !w.Again(t.Context(), err) {
						got = append(got, "end")
						break
					}
					addr := w.Addr()
					switch d := time.Since(begin); {
					case d >= time.Hour:
						addr = "1h0m0s " + addr
					case d > 0:
						addr = "5ms " + addr
					}
					got = append(got, addr)
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("asked %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestAWalkEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := Walk{Layer: Control, Places: func() []string { return nil }, AddrOf: func(rowraft.NodeID) string { return "" }}
		tries, begin := 1, time.Now()
		for ; w.Again(ctx, fmt.Errorf("place %q: %w", w.Addr(), errors.New("nothing listens"))); tries++ {
		}
		if d := time.Since(begin); d != time.Second || tries < 7 || tries > 40 {
			t.Errorf("%d tries in %v, want the back-off of one second", tries, d)
		}
	})
}

func TestBackoff(t *testing.T) {
	var b Backoff
	for i, want := range []time.Duration{5, 10, 20, 40, 80, 100, 100} {
		want *= time.Millisecond
		if d := b.Delay(0); d < want || d > want+want/2 {
			t.Errorf("delay %d: %v, want %v to %v", i, d, want, want+want/2)
		}
	}
	if d := b.Delay(time.Minute); d < time.Minute || d > 90*time.Second {
		t.Errorf("a delay of at least a minute: %v", d)
	}
}
