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
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	driveInterval  = 100 * time.Millisecond
	stepTimeout    = 15 * time.Second // of one turn of one move
	membersTimeout = 2 * time.Second
	membersRounds  = 6 // with pauses of 5 to 80 ms between them
	changeTimeout  = 5 * time.Second
	// forgetAfter is how long a leader of the metadata group has known of a removed
	// replica when the group's leader gives the report that lets it be dropped from the
	// map: later than any call of an earlier leader, which might have added it again.
	forgetAfter = 2 * stepTimeout
)

// burial stands among the moves that have a turn for buryReplicas, which may wait for
// a group that does not answer. Moves count from 1.
const burial = 0

// driver is the leader's memory of the moves it drives; empty with each new term.
type driver struct {
	mu      sync.Mutex
	term    rowraft.Term
	synced  bool // what earlier terms logged is applied here
	busy    map[uint64]bool
	notes   map[uint64]note
	removed map[rowraft.ReplicaID]time.Time // since when this leader knows
}

// note is what the last turn of a move came to.
type note struct {
	waitingFor string
	lag        uint64
}

// drive works on moves, and on what they leave behind, while this member leads the
// metadata group. It returns when ctx and all that it started have ended.
func (s *Scheduler) drive(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(driveInterval)
	defer tick.Stop()
	for {
		_, changed := s.view.Changed()
		s.driveOnce(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
		}
	}
}

// driveOnce gives every move a turn that has none.
func (s *Scheduler) driveOnce(ctx context.Context, wg *sync.WaitGroup) {
	l, term, err := s.leading()
	if err != nil || !s.driver.begin(ctx, l, term) {
		return
	}
	running, _ := s.machine.moves()
	for _, m := range running {
		if s.driver.take(m.id) {
			wg.Go(func() {
				defer s.driver.release(m.id)
				s.turn(ctx, term, m.id)
			})
		}
	}
	if s.driver.take(burial) {
		wg.Go(func() {
			defer s.driver.release(burial)
			ctx, cancel := context.WithTimeout(ctx, stepTimeout)
			defer cancel()
			if err := s.buryReplicas(ctx); err != nil {
				s.logger.Debug("replicas that left are not forgotten yet", "err", err)
			}
		})
	}
}

// leadingInSync is leading, once this leader knows what earlier ones logged: before
// that it would answer from an old map.
func (s *Scheduler) leadingInSync(ctx context.Context) (Log, error) {
	l, term, err := s.leading()
	if err == nil && !s.driver.begin(ctx, l, term) {
		err = rowraft.Errorf(rowraft.CodeStarting, "the new leader of the metadata group still reads what was logged before it")
	}
	return l, err
}

// begin makes sure, once in a term, that this leader knows all that earlier ones
// logged: it must not go on with a move that another one has ended.
func (d *driver) begin(ctx context.Context, l Log, term rowraft.Term) bool {
	d.mu.Lock()
	if d.term != term || d.busy == nil {
		d.term, d.synced = term, false
		if d.busy == nil {
			d.busy = make(map[uint64]bool)
		}
		d.notes, d.removed = make(map[uint64]note), make(map[rowraft.ReplicaID]time.Time)
	}
	synced := d.synced
	d.mu.Unlock()
	if synced {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	if l.Barrier(ctx) != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.synced = d.term == term
	return d.synced
}

func (d *driver) take(id uint64) bool {
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

// write notes what a move waits for and reports whether that is news.
func (d *driver) write(id uint64, n note) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	news := d.notes[id].waitingFor != n.waitingFor
	d.notes[id] = n
	return news
}

func (d *driver) read(id uint64) note {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.notes[id]
}

// turn takes a move as far as it goes without waiting.
func (s *Scheduler) turn(ctx context.Context, term rowraft.Term, id uint64) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for ctx.Err() == nil {
		running, _ := s.machine.moves()
		i := slices.IndexFunc(running, func(m move) bool { return m.id == id })
		if i < 0 {
			return
		}
		if _, now, err := s.leading(); err != nil || now != term {
			return // another member drives it now
		}
		m := running[i]
		next, wait, err := s.step(ctx, &m)
		if err == nil && next != 0 {
			err = s.advance(ctx, &m, next)
			if err == nil {
				s.logger.Info("a replica moves", "move", m.id, "shard", uint32(m.shard), "from", string(m.from.Node), "to", string(m.to.Node), "phase", phaseName(next))
				s.driver.write(id, note{})
				continue
			}
		}
		if err != nil {
			wait.waitingFor = err.Error()
		}
		if s.driver.write(id, wait) && err != nil && ctx.Err() == nil {
			s.logger.Warn("a move waits; trying again", "move", m.id, "shard", uint32(m.shard), "phase", phaseName(m.phase), "err", err)
		}
		if err != nil || wait.waitingFor != "" {
			return
		}
	}
}

// step does one thing for m and returns the phase that the group says is next, if
// any; or what to wait for.
func (s *Scheduler) step(ctx context.Context, m *move) (next phase, wait note, err error) {
	sh := s.view.Map().Shards[m.shard]
	leader, members, err := s.members(ctx, sh)
	if err != nil {
		return 0, wait, err
	}
	to, from := memberOf(members, m.to.ID), memberOf(members, m.from.ID)
	change := func(c *rowraftv1.ChangeMembersRequest) error {
		c.Shard, c.PrevIndex = uint32(m.shard), members.ConfigIndex
		return s.callAdmin(ctx, leader, changeTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
			_, err := a.ChangeMembers(ctx, c)
			return err
		})
	}
	remove := func(r clustermap.Replica, heir rowraft.NodeID) error {
		if r.Node == leader {
			return s.handOver(ctx, m.shard, leader, heir)
		}
		return change(&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_Remove{Remove: string(r.ID)}})
	}
	switch m.phase {
	case phaseLearn, phasePromote:
		switch {
		case to == nil:
			return 0, wait, change(&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_AddLearner{
				AddLearner: &rowraftv1.Replica{Id: string(m.to.ID), Node: string(m.to.Node)},
			}})
		case m.phase == phasePromote && to.Voter:
			return phaseRemove, wait, nil
		case !to.CaughtUp:
			wait.lag = to.LagEntries
			if wait.waitingFor = fmt.Sprintf("the learner is %d entries behind", to.LagEntries); to.MatchIndex == 0 {
				wait.waitingFor = "the learner has no entry yet: its server starts it, or loads a snapshot"
			}
			return 0, wait, nil
		case m.phase == phaseLearn:
			return phasePromote, wait, nil
		}
		return 0, wait, change(&rowraftv1.ChangeMembersRequest{Change: &rowraftv1.ChangeMembersRequest_Promote{Promote: string(m.to.ID)}})
	case phaseRemove:
		if from == nil {
			return phaseDone, wait, nil
		}
		return 0, wait, remove(m.from, m.to.Node)
	case phaseCancel:
		if to == nil {
			return phaseCancelled, wait, nil
		}
		return 0, wait, remove(m.to, "")
	}
	return 0, wait, rowraft.Errorf(rowraft.CodeInternal, "move %d is in phase %v", m.id, m.phase)
}

// advance logs that m is in the next phase.
func (s *Scheduler) advance(ctx context.Context, m *move, next phase) error {
	_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_AdvanceMove{AdvanceMove: &rowraftv1.MetaAdvanceMove{
		MoveId: m.id, From: m.phase, To: next,
	}}})
	return err
}

// handOver has the leader of a shard give the lead to heir, or, if that one cannot
// take it, to any other voter.
func (s *Scheduler) handOver(ctx context.Context, shard rowraft.ShardID, leader, heir rowraft.NodeID) error {
	call := func(to rowraft.NodeID) error {
		return s.callAdmin(ctx, leader, changeTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
			_, err := a.TransferLeader(ctx, &rowraftv1.TransferLeaderRequest{Shard: uint32(shard), ToNode: string(to)})
			return err
		})
	}
	err := call(heir)
	if err != nil && heir != "" && rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		err = call("")
	}
	return err
}

func memberOf(m *rowraftv1.MembersReply, id rowraft.ReplicaID) *rowraftv1.MemberStatus {
	for _, s := range m.GetMembers() {
		if s.GetReplicaId() == string(id) {
			return s
		}
	}
	return nil
}

// members finds the leader of a shard and asks it for the members of the group. It asks for
// membersRounds, so that a new leader has a moment to show itself.
func (s *Scheduler) members(ctx context.Context, sh clustermap.Shard) (leader rowraft.NodeID, reply *rowraftv1.MembersReply, err error) {
	w := s.walk(sh)
	for w.Rounds = membersRounds; ; {
		leader = rowraft.NodeID(w.Addr())
		err = s.callAdmin(ctx, leader, membersTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) (err error) {
			reply, err = a.Members(ctx, &rowraftv1.MembersRequest{Shard: uint32(sh.ID)})
			return err
		})
		if err == nil {
			return leader, reply, nil
		}
		if !w.Again(ctx, err) {
			return "", nil, fmt.Errorf("shard %d: members: node %s: %w", sh.ID, leader, err)
		}
	}
}

// buryReplicas drops removed replicas from the map once their servers have said
// that they are gone; one that is still, or again, a member of its group (a call of
// an earlier leader came late) is removed from it.
func (s *Scheduler) buryReplicas(ctx context.Context) error {
	m := s.view.Map()
	if m == nil {
		return nil
	}
	s.soft.mu.Lock()
	beats := maps.Clone(s.soft.beats)
	s.soft.mu.Unlock()
	var errs []error
	for _, sh := range m.Shards {
		for _, r := range sh.Removed {
			known := s.driver.knownSince(r.ID, s.soft.now())
			report, at := leaderReport(sh, beats)
			switch {
			case report == nil || !at.After(known):
			case reports(report.Members, r.ID):
				errs = append(errs, s.evict(ctx, sh, r.ID))
			case at.Sub(known) >= forgetAfter && gone(beats[r.Node], r):
				c := &rowraftv1.MetaForgetReplica{Shard: uint32(sh.ID), ReplicaId: string(r.ID)}
				_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetReplica{ForgetReplica: c}})
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// knownSince is when this leader first saw that replica id was removed.
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

// leaderReport is what the leader of sh said last, and when.
func leaderReport(sh clustermap.Shard, beats map[rowraft.NodeID]beat) (best *rowraftv1.ReplicaStatus, at time.Time) {
	for _, r := range sh.Replicas {
		for _, st := range beats[r.Node].replicas {
			if st.GetReplicaId() == string(r.ID) && st.GetConfigIndex() > 0 && st.GetTerm() >= best.GetTerm() {
				best, at = st, beats[r.Node].at
			}
		}
	}
	return best, at
}

func reports(members []*rowraftv1.MemberStatus, id rowraft.ReplicaID) bool {
	return slices.ContainsFunc(members, func(m *rowraftv1.MemberStatus) bool { return m.GetReplicaId() == string(id) })
}

// gone reports whether the node of r has followed the map that removed it and has
// it no more.
func gone(b beat, r clustermap.Removed) bool {
	return b.mapVersion >= r.Version && !slices.ContainsFunc(b.replicas, func(st *rowraftv1.ReplicaStatus) bool { return st.GetReplicaId() == string(r.ID) })
}

// evict removes a replica that the map has removed from its group.
func (s *Scheduler) evict(ctx context.Context, sh clustermap.Shard, id rowraft.ReplicaID) error {
	leader, members, err := s.members(ctx, sh)
	if err != nil || memberOf(members, id) == nil {
		return err
	}
	s.logger.Warn("a replica that left is a member of its group again; removing it", "shard", uint32(sh.ID), "replica", string(id))
	return s.callAdmin(ctx, leader, changeTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
		_, err := a.ChangeMembers(ctx, &rowraftv1.ChangeMembersRequest{
			Shard: uint32(sh.ID), PrevIndex: members.ConfigIndex, Change: &rowraftv1.ChangeMembersRequest_Remove{Remove: string(id)},
		})
		return err
	})
}
