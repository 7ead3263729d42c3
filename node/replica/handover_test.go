package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
)

// A call waits on the server for the next leader, for a short time; time is virtual.
func TestCallsWaitWhileTheLeadChangesHands(t *testing.T) {
	none := rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
	elected := rowraft.Errorf(rowraft.CodeStarting, "still applies")
	other := &rowraft.NotLeaderError{Shard: 1, Leader: "n2", Term: 3}
	const soon = 20 * time.Millisecond
	for _, tc := range []struct {
		name      string
		until     time.Duration
		then      error // from until on
		first     error
		want      error
		wantAfter time.Duration
	}{
		{"who serves answers at once", 0, nil, nil, nil, 0},
		{"who knows the leader says so at once", 0, other, other, other, 0},
		{"the next leader shows itself", soon, other, none, other, soon},
		{"this replica is elected, and serves", soon, nil, elected, nil, soon},
		{"a replica that is cut off does not keep the call", time.Hour, nil, none, none, nextLeaderWait},
		{"nor one that has much to apply", time.Hour, nil, elected, elected, electedWait},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				err := awaitLead(t.Context(), func() error {
					if time.Since(begin) < tc.until {
						return tc.first
					}
					return tc.then
				})
				if took := time.Since(begin); err != tc.want || took < tc.wantAfter || took > tc.wantAfter+handOverPoll {
					t.Errorf("%v after %v, want %v after %v", err, took, tc.want, tc.wantAfter)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := awaitLead(ctx, func() error { return none }); err != none {
					t.Errorf("a caller who has left: %v", err)
				}
			})
		})
	}
}
