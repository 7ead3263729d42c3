package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// slowGroup leads term 7. Its first barriers fail, and committed entries take a while to apply.
type slowGroup struct {
	refusals  int
	appliedAt time.Time
	follower  bool
	moves     int // how often the term grows between two looks
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

// A replica that raft made the leader serves in the end, however long it takes to prepare: raft reports the
// leadership once only.
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
				term, ok := confirmLead(ctx, &g, 0, slog.New(slog.DiscardHandler))
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
		if _, ok := confirmLead(ctx, &g, 0, slog.New(slog.DiscardHandler)); ok {
			t.Error("confirmed a lead whose state is a day away")
		}
	})
}

// notLeading is a group that another node leads.
type notLeading struct{ slowGroup }

func (notLeading) ReadIndex(context.Context) (rowraft.Index, error) {
	return 0, fmt.Errorf("read: %w", &raftstore.NotLeaderError{Group: "shard-3", Term: 5, Leader: "n2"})
}

// A client follows the hint of a refused read like that of a push.
func TestARefusedReadNamesTheLeader(t *testing.T) {
	_, err := readIndex(t.Context(), &notLeading{}, 3)
	hint, ok := errors.AsType[*rowraft.NotLeaderError](err)
	if !ok || *hint != (rowraft.NotLeaderError{Shard: 3, Term: 5, Leader: "n2"}) {
		t.Errorf("%T %v, want the shard's NotLeaderError that names n2", err, err)
	}
}

// A former leader that was suspended refuses by its old state.
func TestARefusalByTheStateIsConfirmed(t *testing.T) {
	const seq = 1
	client := rowraft.ClientID{1}
	part := func() *wire.Part { return &wire.Part{Client: client, Incarnation: 1, Seq: seq, Op: wire.OpPush} }
	m, err := shard.New(shard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	deposed := func(context.Context) (rowraft.Index, error) { return 0, &rowraft.NotLeaderError{Leader: "n2"} }
	if _, err := checkPart(t.Context(), m, part(), deposed); rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		t.Errorf("a deposed leader without the session: %v, want CodeNotLeader", err)
	}
	catchUp := func(context.Context) (rowraft.Index, error) {
		m.Apply(1, wire.OpenSessionEntry(wire.EntryHeader{Version: wire.FirstVersion, LogTime: 1, Epoch: 1},
			wire.Opening{Client: client, Incarnation: 1}))
		return 1, nil
	}
	if dup, err := checkPart(t.Context(), m, part(), catchUp); dup || err != nil {
		t.Errorf("after the leader caught up: duplicate %v, %v", dup, err)
	}
	stranger := part()
	stranger.Client[0]++
	if _, err := checkPart(t.Context(), m, stranger, catchUp); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a session that was never opened: %v, want CodeSessionExpired", err)
	}
	never := func(context.Context) (rowraft.Index, error) { t.Error("what needs no proof was proved"); return 0, nil }
	if _, err := checkPart(t.Context(), m, part(), never); err != nil {
		t.Error(err)
	}
}

// A group may lead before openReplica has stored it.
func TestLeadershipWaitsForTheReplicaToBeOpen(t *testing.T) {
	r := &replica{opened: make(chan struct{}), log: slog.New(slog.DiscardHandler)}
	r.ctx, r.cancel = context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.leaderChanged(7, true); close(done) }()
	r.cancel() // the start has failed after all
	<-done
	if r.leading.Load() != 0 {
		t.Error("a replica without a group leads")
	}
}
