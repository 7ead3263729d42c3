package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/ticks"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
)

const (
	placeInterval = 500 * time.Millisecond
	placeTimeout  = 10 * time.Second // of one round
	// DefaultReplaceAfter is the silence after which a server's replicas are rebuilt on other servers. It is longer
	// than a machine takes to restart.
	DefaultReplaceAfter = 5 * time.Minute
	// leadRest is how long a shard keeps its leader before a transfer for balance: a transfer stops the shard's pushes
	// for some milliseconds.
	leadRest = 30 * time.Second
	// transferPause is the pause between two attempts to transfer the leadership of one shard.
	transferPause = 2 * time.Second
)

// placeMemory is the leader's memory of placement. It is empty at the start of a term. It has no lock: only the
// goroutine of placeLoop.run uses it.
type placeMemory struct {
	term      rowraft.Term
	leads     map[rowraft.ShardID]leadSince
	transfers map[rowraft.ShardID]time.Time   // last transfer, by shard
	fenced    map[rowraft.ReplicaID]time.Time // when this leader first saw the replica as fenced
	told      string                          // the last error in the log
}

// placeLoop is the control loop of placement, and serves the calls for servers. It keeps no memory itself: run has the
// placeMemory of the term.
type placeLoop struct {
	*group
	driver   *driver       // for the notes on moves
	leadRest time.Duration // the constant leadRest, except in tests
}

func newPlaceMemory(term rowraft.Term) placeMemory {
	return placeMemory{term: term, leads: make(map[rowraft.ShardID]leadSince),
		transfers: make(map[rowraft.ShardID]time.Time), fenced: make(map[rowraft.ReplicaID]time.Time)}
}

// leadSince is the leader of a shard and since when this leader has known it.
type leadSince struct {
	node rowraft.NodeID
	at   time.Time
}

// run is the control loop of placement. While this member leads the scheduler, it takes the steps of
// placement.Next. It returns when ctx ends.
func (pl *placeLoop) run(ctx context.Context) {
	tick := ticks.New(placeInterval)
	defer tick.Stop()
	var p placeMemory
	for {
		_, changed := pl.view.Changed()
		err := pl.round(ctx, &p)
		if msg := errorText(err); msg != p.told && ctx.Err() == nil {
			if p.told = msg; err != nil {
				pl.logger.Warn("placement failed; the next round tries again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
			if !pause(ctx, placeInterval/5) { // treat a burst of changes as one
				return
			}
		}
	}
}

// discountPause subtracts the time for which this process was suspended from the silence of every server.
func (s *soft) discountPause(lost time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	later := func(t time.Time) time.Time {
		if t = t.Add(lost); t.After(now) {
			return now
		}
		return t
	}
	s.since = later(s.since)
	for id, b := range s.beats {
		b.at = later(b.at)
		s.beats[id] = b
	}
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// round is one round of run.
func (pl *placeLoop) round(ctx context.Context, p *placeMemory) error {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	l, term, err := pl.leading()
	if err != nil || !pl.inSync(ctx, l, term) {
		return nil // another member's work
	}
	defer pl.stats.round(loopPlacement)()
	if p.term != term {
		// Kept across terms so that the same error is not logged again with each election.
		told := p.told
		*p = newPlaceMemory(term)
		p.told = told
	}
	if err := errors.Join(pl.replaceDead(ctx), pl.endOperations(ctx), pl.retireNodes(ctx),
		pl.cancelLost(ctx)); err != nil {
		return err
	}
	return errors.Join(pl.keepSeats(ctx), pl.takeSteps(ctx, term, p))
}

// takeSteps takes the steps of placement.Next until there is none.
func (pl *placeLoop) takeSteps(ctx context.Context, term rowraft.Term, p *placeMemory) error {
	for ctx.Err() == nil {
		m := pl.view.Map()
		if m == nil || len(m.Shards) == 0 {
			return nil
		}
		w := pl.world(m, p)
		next, ok := placement.Next(w)
		if !ok {
			return nil
		}
		if _, now, err := pl.leading(); err != nil || now != term {
			return nil
		}
		if err := pl.takeStep(ctx, m, &next, p); err != nil {
			return err
		}
	}
	return nil
}

// takeStep takes one step.
func (pl *placeLoop) takeStep(ctx context.Context, m *clustermap.Map, next *placement.Step, p *placeMemory) error {
	if next.Transfer {
		// Recorded before the call: a transfer that fails must not be tried again in every round.
		p.transfers[next.Shard] = pl.soft.now()
		if err := pl.transferLeader(ctx, next.Shard, next.From, next.To); err != nil {
			return fmt.Errorf("shard %d: transfer the leadership from %s to %s: %w", next.Shard, m.NameOf(next.From),
				m.NameOf(next.To), err)
		}
		pl.logger.Info("a leadership was transferred", "shard", uint32(next.Shard), "from", string(next.From), "to",
			string(next.To))
		pl.soft.forgetLead(next.Shard, next.From)
		return nil
	}
	c := &rowraftv1.MetaStartMove{Shard: uint32(next.Shard), FromNode: string(next.From), MapVersion: uint64(m.Version),
		Reason: next.Reason}
	if next.To != "" {
		c.To = &rowraftv1.Replica{Id: uuid.NewString(), Node: string(next.To)}
	}
	mv, err := proposeResult[meta.Move](ctx, pl.group,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartMove{StartMove: c}})
	if rowraft.CodeOf(err) == rowraft.CodePrecondition {
		return nil // the map has changed: decide again in the next round
	}
	if err != nil {
		return err
	}
	pl.logger.Info("a replica begins to move", "move", mv.ID, "shard", uint32(mv.Shard), "from", m.NameOf(mv.From.Node),
		"to", m.NameOf(mv.To.Node), "reason", reasonName(mv.Reason))
	return nil
}

// forgetLead deletes a node's report that it leads a shard, after it transferred the leadership. Its next report is
// used again. Without this, the next step would still count the old leader.
func (s *soft) forgetLead(shard rowraft.ShardID, node rowraft.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.beats[node]
	if !ok {
		return
	}
	b.replicas = slices.DeleteFunc(slices.Clone(b.replicas), func(r *rowraftv1.ReplicaStatus) bool {
		return r.GetShard() == uint32(shard) && r.GetRole() == diagnosis.Leader
	})
	s.beats[node] = b
}

// liveness is the state of a server as the scheduler's leader sees it.
type liveness struct {
	state   string
	silence time.Duration // time since its last heartbeat, or since this leader leads
	inState time.Duration
	beat    beat
	seen    bool
}

// liveness returns the state of a node.
func (g *group) liveness(id rowraft.NodeID) liveness {
	g.pulse.check()
	g.soft.mu.Lock()
	defer g.soft.mu.Unlock()
	return g.soft.livenessLocked(id, g.soft.now())
}

// livenessLocked is liveness. REQUIRES: mu is held.
func (s *soft) livenessLocked(id rowraft.NodeID, now time.Time) (l liveness) {
	l.beat, l.seen = s.beats[id]
	at, since := l.beat.at, l.beat.since
	if !l.seen { // a new leader gives every server time to report
		at, since = s.since, s.since
	}
	l.silence = max(now.Sub(at), 0)
	switch l.state = stateAfter(l.silence); l.state {
	case diagnosis.Up:
		l.inState = max(now.Sub(since), 0)
	case diagnosis.Suspect:
		l.inState = l.silence - SuspectAfter
	default:
		l.inState = l.silence - DownAfter
	}
	return l
}

// isDead reports whether the replicas of a silent server are to be rebuilt on other servers.
func (g *group) isDead(l *liveness) bool {
	return g.isOver(l.silence)
}

// isOver reports whether a replica that has served nothing for this time is to be replaced.
func (g *group) isOver(silent time.Duration) bool {
	return g.opts.ReplaceAfter > 0 && silent >= max(g.opts.ReplaceAfter, SuspectAfter)
}

// world returns the present input of placement.Next.
func (pl *placeLoop) world(m *clustermap.Map, p *placeMemory) *placement.World {
	w := &placement.World{Balance: !pl.opts.NoRebalance && pl.machine.NoRestore()}
	running, _ := pl.machine.Moves()
	pl.pulse.check()
	pl.soft.mu.Lock()
	defer pl.soft.mu.Unlock()
	now := pl.soft.now()
	alive := make(map[rowraft.NodeID]*liveness)
	for _, n := range m.Servers() {
		l := pl.soft.livenessLocked(n.ID, now)
		alive[n.ID] = &l
		wn := placement.Node{ID: n.ID, Zone: n.Label(clustermap.ZoneLabel), Up: l.seen && l.state == diagnosis.Up,
			Stopping: l.beat.stopping, Intent: n.Intent}
		wn.Full, wn.NearlyFull = room(l.beat.disk)
		wn.Dead = pl.isDead(&l) || !wn.Up && n.Intent == clustermap.Decommission && l.state == diagnosis.Down
		// A server that restarts comes back with its replicas and leads. Balancing without it would move them twice.
		if !wn.Dead && (!wn.Up || wn.Stopping) {
			w.Balance = false
		}
		w.Nodes = append(w.Nodes, wn)
	}
	for _, sh := range m.Shards {
		ws := placement.Shard{ID: sh.ID}
		for _, r := range sh.Replicas {
			ws.Replicas = append(ws.Replicas, r.Node)
			for _, st := range alive[r.Node].reports(r.ID) {
				if st.GetFenced() == "" {
					continue
				}
				ws.Fenced = append(ws.Fenced, r.Node)
				since, known := p.fenced[r.ID]
				if !known {
					since, p.fenced[r.ID] = now, now
				}
				if pl.isOver(now.Sub(since)) {
					ws.FencedLong = append(ws.FencedLong, r.Node)
				}
			}
		}
		for _, mv := range running {
			if mv.Shard == sh.ID {
				ws.Moving, ws.Leaving = true, mv.From.Node
				if !slices.Contains(ws.Replicas, mv.To.Node) {
					ws.Joining = mv.To.Node
				}
				if mv.Phase == meta.PhaseCancel {
					ws.Leaving = ""
				}
			}
		}
		ws.Leader = leaderIn(&sh, alive)
		if p.leads[sh.ID].node != ws.Leader {
			p.leads[sh.ID] = leadSince{ws.Leader, now}
		}
		ws.LedLong = now.Sub(p.leads[sh.ID].at) >= pl.leadRest
		ws.LeadTried = now.Sub(p.transfers[sh.ID]) < transferPause
		w.Shards = append(w.Shards, ws)
	}
	return w
}

// room reports whether free space is below the reserve (full), and whether it is near or below it (tight). For an
// unknown disk both are false.
func room(d *rowraftv1.Disk) (full, nearly bool) {
	free, reserve := d.GetFreeBytes(), d.GetReserveBytes()
	return free < reserve, free < diagnosis.NearlyFull*reserve
}

// reports returns the last report of a replica, as a list of at most one; empty if the server is not up.
func (l *liveness) reports(id rowraft.ReplicaID) []*rowraftv1.ReplicaStatus {
	if l == nil || l.state != diagnosis.Up {
		return nil
	}
	for i, r := range l.beat.replicas {
		if r.GetReplicaId() == string(id) {
			return l.beat.replicas[i : i+1]
		}
	}
	return nil
}

// leaderIn returns the server that reports to lead sh; of several, the one with the highest term.
func leaderIn(sh *clustermap.Shard, alive map[rowraft.NodeID]*liveness) (leader rowraft.NodeID) {
	term := uint64(0)
	for _, r := range sh.Replicas {
		for _, st := range alive[r.Node].reports(r.ID) {
			if st.GetRole() == diagnosis.Leader && st.GetTerm() >= term {
				leader, term = r.Node, st.GetTerm()
			}
		}
	}
	return leader
}

// replaceDead begins an operation for each dead server that has replicas and no running operation.
func (pl *placeLoop) replaceDead(ctx context.Context) error {
	m := pl.view.Map()
	if m == nil {
		return nil
	}
	var errs []error
	for _, n := range m.Servers() {
		l := pl.liveness(n.ID)
		if n.Intent == clustermap.Decommission || !pl.isDead(&l) || pl.runningOn(n.ID) != nil || len(m.ShardsOn(n.ID)) == 0 {
			continue
		}
		pl.logger.Warn("a server is silent for too long; its replicas are rebuilt on other servers", "server", m.NameOf(n.ID),
			"silent", l.silence.Round(time.Second).String())
		_, err := pl.setIntent(ctx, m, n.ID, n.Intent, n.Intent, meta.OpReplace)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// runningOn returns the running operation of a node, or nil.
func (pl *placeLoop) runningOn(id rowraft.NodeID) *meta.Operation {
	for _, o := range pl.machine.Operations() {
		if o.Node == id && o.State == meta.OpRunning {
			return &o
		}
	}
	return nil
}

// setIntent logs the intent of a server and starts the operation that follows from it.
func (pl *placeLoop) setIntent(ctx context.Context, m *clustermap.Map, id rowraft.NodeID, from, to clustermap.Intent,
	kind rowraftv1.OperationKind) (meta.Operation, error) {
	total := len(m.ShardsOn(id))
	if kind == meta.OpDrain {
		total = len(pl.leadsOf(m, id))
	}
	return proposeResult[meta.Operation](ctx, pl.group,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SetIntent{SetIntent: &rowraftv1.MetaSetIntent{
			Node: string(id), From: rowraftv1.NodeIntent(from), To: rowraftv1.NodeIntent(to), Kind: kind, Total: uint64(total),
		}}})
}

// leadsOf returns the shards that a node reports to lead.
func (pl *placeLoop) leadsOf(m *clustermap.Map, id rowraft.NodeID) (out []rowraft.ShardID) {
	l := pl.liveness(id)
	for _, sh := range m.Shards {
		if r, has := sh.On(id); has {
			for _, st := range l.reports(r.ID) {
				if st.GetRole() == diagnosis.Leader {
					out = append(out, sh.ID)
				}
			}
		}
	}
	return out
}

// endOperations ends the operations that are complete, and the replacement of a server that is up again.
func (pl *placeLoop) endOperations(ctx context.Context) error {
	m := pl.view.Map()
	var errs []error
	for _, o := range pl.machine.Operations() {
		if o.State != meta.OpRunning || m == nil {
			continue
		}
		l := pl.liveness(o.Node)
		n, _ := m.Node(o.Node)
		switch {
		case o.Kind == meta.OpReplace && l.seen && l.state == diagnosis.Up && len(m.ShardsOn(o.Node)) > 0:
			pl.logger.Info("a server that was being replaced is back", "server", m.NameOf(o.Node), "operation", o.ID)
			_, err := pl.setIntent(ctx, m, o.Node, n.Intent, n.Intent, 0)
			errs = append(errs, err)
		case pl.left(m, &o) == 0 && (o.Kind != meta.OpDrain || l.seen || l.state != diagnosis.Up):
			pl.logger.Info("an operation is done", "operation", o.ID, "kind", diagnosis.OperationName(o.Kind), "server",
				m.NameOf(o.Node))
			_, err := pl.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndOperation{
				EndOperation: &rowraftv1.MetaEndOperation{Id: o.ID}}})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// left returns how many replicas or leaders an operation has still to move.
func (pl *placeLoop) left(m *clustermap.Map, o *meta.Operation) int {
	if o.Kind == meta.OpDrain {
		return len(pl.leadsOf(m, o.Node))
	}
	return len(m.ShardsOn(o.Node))
}

// retireNodes deletes servers from the map that are decommissioned, hold no replicas, and are down.
func (pl *placeLoop) retireNodes(ctx context.Context) error {
	m := pl.view.Map()
	if m == nil {
		return nil
	}
	var errs []error
	for _, n := range m.Nodes {
		if n.Intent != clustermap.Decommission || n.Scheduler || len(m.ShardsOn(n.ID)) > 0 {
			continue
		}
		if l := pl.liveness(n.ID); l.state == diagnosis.Down {
			pl.logger.Info("a decommissioned server is down; it is removed from the map", "server", m.NameOf(n.ID))
			_, err := pl.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RetireNode{
				RetireNode: &rowraftv1.MetaRetireNode{Node: string(n.ID)}}})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// cancelLost cancels moves to a dead server. It also cancels moves that placement began if their target is down or is
// being decommissioned.
func (pl *placeLoop) cancelLost(ctx context.Context) error {
	m := pl.view.Map()
	running, _ := pl.machine.Moves()
	var errs []error
	for _, mv := range running {
		// In phase REMOVE the old replica may have left the group already, so the move must end.
		if mv.Phase != meta.PhaseLearn && mv.Phase != meta.PhasePromote || m == nil {
			continue
		}
		l, n := pl.liveness(mv.To.Node), clustermap.Node{}
		n, _ = m.Node(mv.To.Node)
		if pl.isDead(&l) || mv.Reason != 0 && (n.Intent == clustermap.Decommission || l.state == diagnosis.Down) {
			pl.logger.Warn("a move is cancelled: its target is down or decommissioned", "move", mv.ID, "shard", uint32(mv.Shard),
				"to", m.NameOf(mv.To.Node))
			errs = append(errs, pl.driver.advance(ctx, &mv, meta.PhaseCancel))
		}
	}
	return errors.Join(errs...)
}
