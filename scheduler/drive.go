package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/ticks"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	driveInterval  = 125 * time.Millisecond
	driveTimeout   = 15 * time.Second // limit of one call of drive
	membersTimeout = 2 * time.Second
	membersRounds  = 6 // with pauses of 5 to 80 ms between them
	changeTimeout  = 5 * time.Second
	// forgetAfter is the least time between the moment when this leader of the
	// scheduler first sees a removed replica and the shard leader's report that lets
	// collectRemoved drop it from the map. By then every call of an earlier leader, which
	// might have added the replica again, has ended.
	forgetAfter = 2 * driveTimeout
)

// collecting is the id under which collectRemoved is listed in driver.busy: it runs on a
// goroutine, as the moves do, because it may wait for a group that does not answer. The
// ids of moves begin at 1.
const collecting = 0

// driver is the control loop of moves, and serves the calls for moves. startTerm resets notes and removed in each new
// term; busy stays, because goroutines of the last term may still run.
type driver struct {
	*group

	mu      sync.Mutex
	term    rowraft.Term
	busy    map[uint64]bool                 // moves, and collecting, on which a goroutine works
	notes   map[uint64]note                 // by move
	removed map[rowraft.ReplicaID]time.Time // when this leader first saw that a replica was removed
}

func newDriver(g *group) *driver {
	return &driver{group: g, busy: make(map[uint64]bool), notes: make(map[uint64]note),
		removed: make(map[rowraft.ReplicaID]time.Time)}
}

// startTerm clears the memory at the first call of a new term.
func (d *driver) startTerm(term rowraft.Term) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term != term {
		d.term, d.notes, d.removed = term, make(map[uint64]note), make(map[rowraft.ReplicaID]time.Time)
	}
}

// note is why a move does not advance.
type note struct {
	waitingFor string // "": it advances
	lag        uint64 // the lag of the learner, in entries
}

// run works on moves and on removed replicas while this member leads the
// scheduler. It returns when ctx and all goroutines that it started have ended.
func (d *driver) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := ticks.New(driveInterval)
	defer tick.Stop()
	for {
		_, changed := d.view.Changed()
		d.round(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
		}
	}
}

// round starts drive for each move, and collectRemoved, where no goroutine of an earlier round still runs them.
func (d *driver) round(ctx context.Context, wg *sync.WaitGroup) {
	l, term, err := d.leading()
	if err != nil {
		return
	}
	defer d.stats.round(loopMoves)()
	d.startTerm(term) // before the barrier: a goroutine of an earlier term may still read this memory
	if !d.inSync(ctx, l, term) {
		return
	}
	running, _ := d.machine.Moves()
	for _, m := range running {
		if d.claim(m.ID) {
			wg.Go(func() {
				defer d.release(m.ID)
				d.drive(ctx, term, m.ID)
			})
		}
	}
	if d.claim(collecting) {
		wg.Go(func() {
			defer d.release(collecting)
			ctx, cancel := context.WithTimeout(ctx, driveTimeout)
			defer cancel()
			if err := d.collectRemoved(ctx); err != nil {
				d.logger.Debug("removed replicas stay in the map for now", "err", err)
			}
		})
	}
}

// claim marks id busy and reports whether it was not. The caller calls release.
func (d *driver) claim(id uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[id] {
		return false
	}
	d.busy[id] = true
	return true
}

func (d *driver) release(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, id)
}

// setNote stores the note of a move and reports whether the move waits for something else now.
func (d *driver) setNote(id uint64, n note) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	news := d.notes[id].waitingFor != n.waitingFor
	d.notes[id] = n
	return news
}

// noteOf returns why a move does not advance.
func (d *driver) noteOf(id uint64) note {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.notes[id]
}

// drive works on a move until the move waits for something, ends, or a call fails. The next call of drive, after
// driveInterval or a new map, continues.
func (d *driver) drive(ctx context.Context, term rowraft.Term, id uint64) {
	ctx, cancel := context.WithTimeout(ctx, driveTimeout)
	defer cancel()
	for ctx.Err() == nil {
		running, _ := d.machine.Moves()
		i := slices.IndexFunc(running, func(m meta.Move) bool { return m.ID == id })
		if i < 0 {
			return
		}
		if _, now, err := d.leading(); err != nil || now != term {
			return // another member drives the move now
		}
		m := running[i]
		next, wait, err := d.workOnPhase(ctx, &m)
		if err == nil && next != 0 {
			err = d.advance(ctx, &m, next)
			if err == nil {
				d.logger.Info("a replica moves", "move", m.ID, "shard", uint32(m.Shard), "from", string(m.From.Node), "to",
					string(m.To.Node), "phase", meta.PhaseName(next))
				d.setNote(id, note{})
				continue
			}
		}
		if err != nil {
			wait.waitingFor = d.view.Map().WithNames(err.Error())
		}
		if d.setNote(id, wait) && err != nil && ctx.Err() == nil {
			d.logger.Warn("a move waits; trying again", "move", m.ID, "shard", uint32(m.Shard), "phase", meta.PhaseName(m.Phase),
				"err", err)
		}
		if err != nil || wait.waitingFor != "" {
			return
		}
	}
}

// workOnPhase reads the members of the shard's group and makes at most one change for m. It returns the next phase if
// the group has reached what the present one is for, or what the move waits for. If it returns neither, it has made a
// change, and the caller calls it again. It reads the members in each call, so it never depends on what an earlier
// call, or an earlier leader, claims to have done.
func (d *driver) workOnPhase(ctx context.Context, m *meta.Move) (next meta.Phase, wait note, err error) {
	sh := d.view.Map().Shards[m.Shard]
	leader, members, err := d.members(ctx, sh)
	if err != nil {
		return 0, wait, err
	}
	to, from := memberOf(members.Members, m.To.ID), memberOf(members.Members, m.From.ID)
	change := func(c *rowraftv1.ChangeMembersRequest) error {
		return d.changeMembers(ctx, m.Shard, leader, members, c)
	}
	remove := func(r clustermap.Replica, heir rowraft.NodeID) error {
		if r.Node == leader {
			return d.handOver(ctx, m.Shard, leader, heir)
		}
		return change(&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_Remove{Remove: string(r.ID)}})
	}
	switch m.Phase {
	case meta.PhaseLearn, meta.PhasePromote:
		switch {
		case to == nil:
			return 0, wait, change(&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_AddLearner{
				AddLearner: &rowraftv1.Replica{Id: string(m.To.ID), Node: string(m.To.Node)},
			}})
		case m.Phase == meta.PhasePromote && to.Voter:
			return meta.PhaseRemove, wait, nil
		case !to.CaughtUp:
			wait.lag = to.LagEntries
			if wait.waitingFor = fmt.Sprintf("the learner is %d entries behind", to.LagEntries); to.MatchIndex == 0 {
				wait.waitingFor = "the learner has no entry yet: its server starts it, or loads a snapshot"
			}
			return 0, wait, nil
		case m.Phase == meta.PhaseLearn:
			return meta.PhasePromote, wait, nil
		}
		return 0, wait,
			change(&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_Promote{Promote: string(m.To.ID)}})
	case meta.PhaseRemove:
		if from == nil {
			return meta.PhaseDone, wait, nil
		}
		return 0, wait, remove(m.From, m.To.Node)
	case meta.PhaseCancel:
		if to == nil {
			return meta.PhaseCancelled, wait, nil
		}
		return 0, wait, remove(m.To, "")
	}
	return 0, wait, rowraft.Errorf(rowraft.CodeInternal, "move %d is in phase %v", m.ID, m.Phase)
}

// advance logs the next phase of m.
func (d *driver) advance(ctx context.Context, m *meta.Move, next meta.Phase) error {
	_, err := d.propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_AdvanceMove{AdvanceMove: &rowraftv1.MetaAdvanceMove{
			MoveId: m.ID, From: m.Phase, To: next,
		}}})
	return err
}

// handOver makes the leader of a shard transfer the leadership to heir or, if heir cannot
// take it, to any other voter. An empty heir is any voter.
func (d *driver) handOver(ctx context.Context, shard rowraft.ShardID, leader, heir rowraft.NodeID) error {
	err := d.transferLeader(ctx, shard, leader, heir)
	// The new replica may have fallen behind. Any voter will do: the old replica can leave as soon as it does not lead.
	if err != nil && heir != "" && rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		err = d.transferLeader(ctx, shard, leader, "")
	}
	return err
}

// changeMembers asks the leader of a shard for one change of its group. The change names the configuration in which it
// was decided, so the leader refuses it if the members have changed since, for example by a late call of an earlier
// leader of the scheduler.
func (d *driver) changeMembers(ctx context.Context, shard rowraft.ShardID, leader rowraft.NodeID,
	seen *rowraftv1.MembersReply, c *rowraftv1.ChangeMembersRequest) error {
	c.Shard, c.PrevIndex = uint32(shard), seen.ConfigIndex
	return d.callReplicas(ctx, leader, changeTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
		_, err := a.ChangeMembers(ctx, c)
		return err
	})
}

// memberOf returns the status of a replica in a list of members, nil if the list lacks it.
func memberOf(members []*rowraftv1.MemberStatus, id rowraft.ReplicaID) *rowraftv1.MemberStatus {
	for _, s := range members {
		if s.GetReplicaId() == string(id) {
			return s
		}
	}
	return nil
}

// members finds the leader of a shard and asks it for the members of the group. It asks the
// replicas up to membersRounds times, so that a shard which elects a leader has time for it.
func (d *driver) members(ctx context.Context,
	sh clustermap.Shard) (leader rowraft.NodeID, reply *rowraftv1.MembersReply, err error) {
	w := d.walk(sh)
	for w.Rounds = membersRounds; ; {
		leader = rowraft.NodeID(w.Addr())
		err = d.callReplicas(ctx, leader, membersTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) (err error) {
			reply, err = a.Members(ctx, &rowraftv1.MembersRequest{Shard: uint32(sh.ID)})
			return err
		})
		if err == nil {
			return leader, reply, nil
		}
		if !w.Again(ctx, err) {
			return "", nil, fmt.Errorf("shard %d: members: server %s: %w", sh.ID, leader, err)
		}
	}
}

// collectRemoved drops removed replicas from the map once their servers have reported
// that the data is deleted. If a removed replica is still a member of its group, or a late
// call of an earlier leader has added it again, collectRemoved takes it out of the group.
func (d *driver) collectRemoved(ctx context.Context) error {
	m := d.view.Map()
	if m == nil {
		return nil
	}
	d.soft.mu.Lock()
	// A copy, because the loop below calls servers and must not hold soft.mu then. The beats themselves are never changed.
	beats := maps.Clone(d.soft.beats)
	d.soft.mu.Unlock()
	var errs []error
	for _, sh := range m.Shards {
		for _, r := range sh.Removed {
			known := d.knownSince(r.ID, d.soft.now())
			report, at := configReport(sh, beats)
			switch {
			// The report must be younger than the first sight: an older one may come from before the replica was removed.
			case report == nil || !at.After(known):
			case memberOf(report.Members, r.ID) != nil:
				errs = append(errs, d.evict(ctx, sh, r.ID))
			case at.Sub(known) >= forgetAfter && hasDeleted(beats[r.Node], r):
				c := &rowraftv1.MetaForgetReplica{Shard: uint32(sh.ID), ReplicaId: string(r.ID)}
				_, err := d.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetReplica{ForgetReplica: c}})
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// knownSince returns when this leader first saw that replica id was removed.
func (d *driver) knownSince(id rowraft.ReplicaID, now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.removed[id]
	if !ok {
		at = now
		d.removed[id] = at
	}
	return at
}

// configReport returns the newest report of the members of sh, and when it came. Only a leader reports them, with a
// configuration index. If two replicas do, the one with the later term counts.
func configReport(sh clustermap.Shard, beats map[rowraft.NodeID]beat) (best *rowraftv1.ReplicaStatus, at time.Time) {
	for _, r := range sh.Replicas {
		for _, st := range beats[r.Node].replicas {
			if st.GetReplicaId() == string(r.ID) && st.GetConfigIndex() > 0 && st.GetTerm() >= best.GetTerm() {
				best, at = st, beats[r.Node].at
			}
		}
	}
	return best, at
}

// hasDeleted reports whether the node of r follows a map that lists r as removed, and does not report r any more.
// A server that follows an older map may still start r, so its silence about r proves nothing.
func hasDeleted(b beat, r clustermap.Removed) bool {
	return b.mapVersion >= r.Version && !slices.ContainsFunc(b.replicas, func(st *rowraftv1.ReplicaStatus) bool {
		return st.GetReplicaId() == string(r.ID)
	})
}

// evict takes a replica that the map lists as removed out of its group.
func (d *driver) evict(ctx context.Context, sh clustermap.Shard, id rowraft.ReplicaID) error {
	leader, members, err := d.members(ctx, sh)
	if err != nil || memberOf(members.GetMembers(), id) == nil {
		return err
	}
	d.logger.Warn("a removed replica is a member of its group; taking it out", "shard", uint32(sh.ID), "replica",
		string(id))
	return d.changeMembers(ctx, sh.ID, leader, members,
		&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_Remove{Remove: string(id)}})
}
