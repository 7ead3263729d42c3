package route

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rowraft/rowraft"
)

// TestWalkScripts runs the script testdata/walk: the answers of the servers a, b and c to a call, and the server that
// is asked next. An answer is a code, leader=SERVER, or busy=DURATION. `go test ./internal/route -run TestWalkScripts
// -rewrite` replaces the output.
func TestWalkScripts(t *testing.T) {
	layers := map[string]Layer{"control": Control, "once": Once}
	datadriven.RunTest(t, "testdata/walk", func(t *testing.T, d *datadriven.TestData) (out string) {
		synctest.Test(t, func(t *testing.T) {
			w := Walk{Layer: layers[d.Cmd], Places: func() []string { return []string{"a", "b", "c"} },
				AddrOf: func(n rowraft.NodeID) string {
					return strings.Trim(string(n), "x") // x has no address
				}}
			for line := range strings.Lines(d.Input) {
				answer := strings.TrimSpace(line)
				asked, begin := w.Addr(), time.Now()
				again := w.Again(t.Context(), answerOf(t, answer))
				pause := ""
				switch took := time.Since(begin); {
				case took >= time.Hour:
					pause = "after an hour "
				case took > 0:
					pause = "after a pause "
				}
				if !again {
					out += fmt.Sprintf("%s: %s, the call ends\n", asked, answer)
					return
				}
				out += fmt.Sprintf("%s: %s, %snext %s\n", asked, answer, pause, w.Addr())
			}
		})
		return out
	})
}

// answerOf returns the error that a line of a script names.
func answerOf(t *testing.T, line string) error {
	what, value, _ := strings.Cut(line, "=")
	switch what {
	case "leader":
		return &rowraft.NotLeaderError{Leader: rowraft.NodeID(value)}
	case "busy":
		after, err := time.ParseDuration(value)
		if err != nil {
			t.Fatal(err)
		}
		return &rowraft.OverloadedError{What: "busy", RetryAfter: after}
	}
	i := slices.IndexFunc(codes(), func(c rowraft.Code) bool { return c.String() == what })
	if i < 0 {
		t.Fatalf("unknown code %q", what)
	}
	return rowraft.Errorf(codes()[i], "refused")
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
