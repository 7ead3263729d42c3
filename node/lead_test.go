package node

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
)

// slowGroup leads term 7. Its barriers fail at first, and what was committed takes
// a while to apply.
type slowGroup struct {
	refusals  int
	appliedAt time.Time
	follower  bool
	moves     int // how often the term grows between a look and the next
	term      rowraft.Term
}

func (g *slowGroup) Leader() (rowraft.NodeID, rowraft.Term, bool) { return "n", g.term, !g.follower }

func (g *slowGroup) ReadIndex(context.Context) (rowraft.Index, error) {
	if g.refusals > 0 {
		g.refusals--
		return 0, rowraft.Errorf(rowraft.CodeNoLeader, "leadership is being handed over")
	}
	if g.moves > 0 {
		g.moves--
		g.term++
	}
	return 3, nil
}

func (g *slowGroup) WaitApplied(ctx context.Context, _ rowraft.Index) error {
	select {
	case <-time.After(time.Until(g.appliedAt)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A replica that raft made the leader serves, however long it takes to get there:
// nobody tells it a second time.
func TestALeaderServesHoweverLateItIsReady(t *testing.T) {
	for _, tc := range []struct {
		name  string
		group slowGroup
		after time.Duration
		want  rowraft.Term
	}{
		{"what was committed takes a minute to apply", slowGroup{term: 7}, time.Minute, 7},
		{"barriers are refused", slowGroup{term: 7, refusals: 100}, 0, 7},
		{"the term grows meanwhile", slowGroup{term: 7, moves: 2}, 0, 9},
		{"another one leads", slowGroup{term: 7, follower: true}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := tc.group
				g.appliedAt = time.Now().Add(tc.after)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				term, ok := confirmLead(ctx, &g, slog.New(slog.DiscardHandler))
				if ok != (tc.want != 0) || ok && term != tc.want || ctx.Err() != nil {
					t.Errorf("confirmed %v in term %d, want term %d", ok, term, tc.want)
				}
			})
		})
	}
}

func TestConfirmLeadEndsWithTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		g := slowGroup{term: 7, appliedAt: time.Now().Add(24 * time.Hour)}
		if _, ok := confirmLead(ctx, &g, slog.New(slog.DiscardHandler)); ok {
			t.Error("confirmed a lead whose state is a day away")
		}
	})
}

// A group may lead before openReplica has stored it.
func TestLeadershipWaitsForTheReplicaToBeOpen(t *testing.T) {
	r := &replica{opened: make(chan struct{}), log: slog.New(slog.DiscardHandler)}
	r.ctx, r.cancel = context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.onLeader(7, true); close(done) }()
	r.cancel() // the start failed after all
	<-done
	if r.leading.Load() != 0 {
		t.Error("a replica without a group leads")
	}
}
