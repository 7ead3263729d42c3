package checkpoint

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestALostLeaderIsLookedFor until --timeout has passed without progress, however many attempts the address of a dead
// leader takes. The reason is printed once.
func TestALostLeaderIsLookedFor(t *testing.T) {
	const patience, changed = 30 * time.Second, "the scheduler's leader changed"
	const broken = "the connection to the scheduler's leader was lost"
	for _, tc := range []struct {
		name    string
		elected time.Duration // when there is a leader
		moves   bool          // each attempt makes progress
		says    []string
		fails   bool
	}{
		{"a slow election", 20 * time.Second, false, []string{broken, changed}, false},
		{"no election", time.Hour, false, []string{broken, changed}, true},
		{"progress between many changes", 50 * time.Second, true, nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var says []string
			began, calls := time.Now(), uint32(0)
			err := retryLost(t.Context(), patience, func(why string) { says = append(says, why) },
				func(attempt uint32, moved func()) error {
					if attempt != calls {
						t.Errorf("%s: attempt %d is the call number %d", tc.name, attempt, calls)
					}
					calls++
					if tc.moves {
						moved()
					}
					switch {
					case time.Since(began) >= tc.elected:
						return nil
					case attempt < 4:
						return rpc.FromStatus(status.Error(codes.Unavailable, "connection refused"))
					}
					return rowraft.Errorf(rowraft.CodeNotLeader, "it does not lead")
				})
			if (err != nil) != tc.fails || tc.says != nil && !slices.Equal(says, tc.says) {
				t.Errorf("%s: %v after %v, it says %q", tc.name, err, time.Since(began), says)
			}
			if took := time.Since(began); tc.fails && (took < patience || took > patience+2*maxPause) {
				t.Errorf("%s: gave up after %v, want %v", tc.name, took, patience)
			}
		})
	}
	calls := 0
	err := retryLost(t.Context(), patience, func(string) { t.Error("it says that the leader is lost") },
		func(uint32, func()) error {
			calls++
			return rowraft.Errorf(rowraft.CodeCorrupt, "it is damaged")
		})
	testutil.WantCodeOf(t, "another error", err, rowraft.CodeCorrupt)
	if calls != 1 {
		t.Errorf("%d calls after another error, want 1", calls)
	}
}
