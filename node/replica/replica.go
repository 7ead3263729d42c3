package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/freshness"
	"github.com/rowraft/rowraft/node/hot"
	"github.com/rowraft/rowraft/node/packer"
	"github.com/rowraft/rowraft/node/steps"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
	"github.com/rowraft/rowraft/wire"
)

// replica is one shard on this node: its state machine, its Raft group, and the
// packer in front of the log.
type replica struct {
	shard   rowraft.ShardID
	node    rowraft.NodeID // this server
	id      rowraft.ReplicaID
	machine *shard.Machine
	group   *raftstore.Group
	packer  *packer.Packer
	clock   logClock
	pushes  pushHold // a checkpoint holds pushes back before they reach packer
	steps   *steps.Aggregator
	fresh   *freshness.Tracker
	admit   *admit.Admission // of the server
	log     *slog.Logger

	mayLog func(rowraft.ShardID, rowraft.FormatVersion) error // of Options

	// leading is the term that this replica leads and in which it has applied everything committed in
	// earlier terms; 0 otherwise. Before that it must not judge sessions, tables or reads: it may not have
	// them yet.
	leading atomic.Uint64

	provedAt atomic.Int64 // Unix nanoseconds of the last comparison in which this replica agreed; 0: none since the start
	reads    readCounts
	heat     *hot.Sketch // accesses to the shard on this server

	lastProved atomic.Uint64 // index that provedAt belongs to

	// written counts the bytes of applied entries, without the entries of comparisons.
	written atomic.Uint64
	rounds  digestRounds
	fenced  chan struct{} // closed by noticeFence
	// rolledBack is why the group found that its disk was rolled back; nil: it was not.
	rolledBack atomic.Pointer[error]
	// notClosed is the table epoch in which a restore could not be closed; 0: none. Only the apply
	// goroutine uses it.
	notClosed rowraft.TableEpoch
	fence     sync.Once

	handOverWaits atomic.Int32 // calls that wait while the leader changes

	opened chan struct{}   // closed when group and packer are set
	ctx    context.Context // canceled by close
	cancel context.CancelFunc
}

// stateMachine adapts shard.Machine to raftstore.StateMachine.
type stateMachine struct {
	*shard.Machine
	r *replica
}

func (m stateMachine) Apply(index rowraft.Index, entry []byte) any {
	result := m.Machine.Apply(index, entry)
	switch a := result.(type) {
	case *shard.FatalError:
		return &raftstore.FatalError{Err: a}
	case *shard.FencedError:
		m.r.noticeFence()
	case *shard.Applied:
		m.r.noteApplied(entry, a)
	}
	return result
}

// noteApplied counts the applied bytes, and notices when the machine was fenced.
func (r *replica) noteApplied(entry []byte, a *shard.Applied) {
	r.steps.EntryApplied()
	h, _, err := wire.ParseEntryHeader(entry)
	have := r.machine.Epoch()
	if err == nil && h.Kind == wire.EntryRestoreClose && rowraft.CodeOf(a.Parts[0].Err) == rowraft.CodeCorrupt {
		r.notClosed = have
	}
	if err == nil && h.Epoch > have && r.notClosed == have {
		// The other replicas have closed a restore that this replica could not close: its staged rows
		// differ from those of the log, so the rows that it serves do too. Without such a failed close, the
		// entry's epoch is that of a caller, which may be ahead of its shard.
		_ = r.machine.Fence(
			fmt.Sprintf("it is of table epoch %d where the log is of %d: what it had staged of a restore was damaged", have,
				h.Epoch))
		r.noticeFence()
		return
	}
	if err == nil && h.Kind != wire.EntryProof {
		r.written.Add(uint64(len(entry)))
		return
	}
	if proved := uint64(r.machine.Rounds.AgreedAt()); r.lastProved.Swap(proved) != proved {
		r.provedAt.Store(time.Now().UnixNano())
	}
	r.noticeFence()
}

// Snapshot refuses while no majority of the replicas agrees (DigestRounds.NoMajority). A snapshot
// does not store that fact, so the entry that reports it must stay in the log.
func (m stateMachine) Snapshot() (raftstore.Snapshot, error) {
	if err := m.r.checkAgreed(); err != nil {
		return nil, err
	}
	s, err := m.Machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return localSnapshot{s}, nil
}

// localSnapshot is a shard.Snapshot as the group keeps it on its own disk.
type localSnapshot struct{ *shard.Snapshot }

func (s localSnapshot) WriteTo(w io.Writer) (int64, error) { return s.WriteLocal(w) }
func (s localSnapshot) Bytes() int64                       { return s.LocalBytes() }

// openReplica starts the group of one shard as the map describes it.
func (h *Host) openReplica(m *clustermap.Map, s clustermap.Shard, self clustermap.Replica) (*replica, error) {
	cold, err := coldfile.OpenDir(vfs.OrOS(h.opts.FS), h.coldDir(s.ID, self.ID))
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", s.ID, err)
	}
	machine, err := shard.New(shard.Config{Shard: s.ID, SlotCount: m.SlotCount(), Slots: m.SlotsOf(s.ID), Tier: cold})
	if err != nil {
		return nil, err
	}
	r := &replica{
		shard: s.ID, node: h.opts.Node, id: self.ID, machine: machine, opened: make(chan struct{}),
		fenced: make(chan struct{}), mayLog: h.opts.MayLog,
		admit: h.opts.Admission, heat: h.heatOf(s.ID),
		log: h.log.With("shard", uint32(s.ID), "replica", string(self.ID)),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.rounds = digestRounds{r: r, every: h.opts.ProofEvery, conn: h.conn, round: make(chan struct{}, 1)}
	r.steps = steps.New(s.ID, machine, stepLeader{r})
	// Only the replicas of the first map write the first entry of the group's log; a later
	// replica is added to it. After a change of the members no replica may write a first entry,
	// also not one of the first map that never ran.
	var founders []raftstore.Member
	if slices.Contains(s.Replicas, self) && s.Changes == 0 {
		for _, rep := range s.Replicas {
			founders = append(founders, raftstore.Member{Replica: rep.ID, Node: rep.Node})
		}
	}
	r.group, err = h.store.StartGroup(raftstore.GroupConfig{
		ID:        groupName(s.ID),
		Replica:   self.ID,
		Machine:   sabotage(stateMachine{machine, r}),
		Bootstrap: founders,
		Check:     r.checkVersion,
		OnLeader:  r.leaderChanged,
		OnRolledBack: func(err error) {
			r.rolledBack.Store(&err)
			r.noticeFence()
		},

		Stages: &h.stages,
		Expand: machine.Cold.Expand, WantsSnapshot: machine.Cold.WantsSnapshot,
	})
	if err == nil {
		// The group has restored its snapshot: the files of other snapshots are of no use any more.
		if err := cold.RemoveStale(); err != nil {
			r.log.Warn("files of cold rows that no table has could not be removed", "err", err)
		}
	}
	if err != nil {
		r.cancel()
		return nil, errors.Join(fmt.Errorf("shard %d: %w", s.ID, err), machine.Close())
	}
	r.fresh = freshness.New(r.ctx, func(ctx context.Context) (rowraft.Index, error) { return h.probe(ctx, r) },
		r.group.AppliedIndex, r.group.WaitApplied)
	r.packer = packer.New(r.group, r.header, machine.Sums, &h.queued)
	close(r.opened)
	return r, nil
}

func groupName(s rowraft.ShardID) string { return fmt.Sprintf("shard-%d", s) }

// leaderChanged runs on raftstore's goroutine for leader changes. A new leader serves after it has applied
// everything committed before its term.
func (r *replica) leaderChanged(term rowraft.Term, leader bool) {
	select {
	case <-r.opened: // the group may lead before openReplica has set it
	case <-r.ctx.Done():
		return
	}
	if _, now, me := r.group.Leader(); leader && me && r.leading.Load() == uint64(now) {
		return // raftstore may report a term twice
	}
	r.leading.Store(0)
	r.steps.Drop(rowraft.Errorf(rowraft.CodeNoLeader, "shard %d: this server has lost the lead", r.shard))
	if !leader {
		r.log.Info("stopped leading", "term", uint64(term))
		return
	}
	start := time.Now()
	r.log.Info("is elected", "term", uint64(term))
	term, ok := confirmLead(r.ctx, r.group, r.shard, r.log)
	if !ok {
		r.log.Info("lost the lead before it began", "term", uint64(term))
		return
	}
	r.clock.restart(r.machine.LogTime())
	r.steps.Lead()
	r.leading.Store(uint64(term))
	r.log.Info("leads the shard", "term", uint64(term), "index", uint64(r.machine.AppliedIndex()), "after",
		time.Since(start).String())
}

// close stops the replica. Queued pushes get their results first.
func (r *replica) close() error {
	r.cancel()
	r.fresh.Close()
	r.steps.Stop()
	r.packer.Close()
	return errors.Join(r.group.Close(), r.machine.Close())
}

// header returns the header of the packer's next entry.
func (r *replica) header() wire.EntryHeader {
	return wire.EntryHeader{Version: wire.FirstVersion, LogTime: r.clock.now(r.machine.LogTime()),
		Epoch: r.machine.Epoch()}
}

// write logs one part, waits for its result, and returns an index at which it is visible. It
// owns p.Payload.
//
// The order matters: a replica that does not lead refuses at once; admission counts the bytes
// before the call waits for anything; a checkpoint can hold pushes from there on, and waits for those that passed;
// checkPart keeps parts that apply would refuse out of the log.
func (r *replica) write(ctx context.Context, p wire.Part) (index rowraft.Index, duplicate bool, err error) {
	notServing := r.mustServe()
	if notServing != nil && changing(notServing) == 0 { // before admission: the leader may have room
		rpc.Pool.Release(p.Payload)
		return 0, false, notServing
	}
	t, err := r.admit.Write(ctx, r.shard, &p)
	if err != nil {
		rpc.Pool.Release(p.Payload)
		return 0, false, err
	}
	if notServing != nil { // the leader changes just now; the push waits for it, admitted and counted
		err = r.awaitServe(ctx)
	}
	if err == nil {
		err = r.pushes.enter(ctx, p.Size())
	}
	if err != nil {
		t.Release()
		rpc.Pool.Release(p.Payload)
		return 0, false, err
	}
	defer r.pushes.exit()
	duplicate, err = checkPart(ctx, r.machine, &p, r.confirm)
	if err != nil || duplicate {
		t.Release()
		rpc.Pool.Release(p.Payload)
		return r.machine.AppliedIndex(), duplicate, err
	}
	r.countWrite(&p)
	done, err := r.packer.Submit(ctx, p, t)
	if err != nil {
		t.Release()
		return 0, false, err
	}
	result, err := packer.Wait(ctx, done)
	if err != nil {
		return 0, false, r.nameNextLeader(ctx, err)
	}
	return r.machine.AppliedIndex(), result.Duplicate, nil
}

// checkPart is Machine.CheckPart, but it returns a refusal because of the state (a missing
// session, table or job) only after confirm has proved that the state is the newest. Such a
// refusal is final for the client, and a leader whose process was suspended may have an old
// state, and not know that another replica leads.
func checkPart(ctx context.Context, m *shard.Machine, p *wire.Part,
	confirm func(context.Context) (rowraft.Index, error)) (duplicate bool, err error) {
	duplicate, err = m.CheckPart(p)
	switch rowraft.CodeOf(err) {
	case rowraft.CodeSessionExpired, rowraft.CodeTableNotFound, rowraft.CodeNotFound, rowraft.CodeNotMember:
	default:
		return duplicate, err
	}
	if _, err := confirm(ctx); err != nil {
		return false, err
	}
	return m.CheckPart(p)
}

// ShardError converts the NotLeaderError of a group to that of its shard.
func ShardError(shard rowraft.ShardID, err error) error {
	if nl, ok := errors.AsType[*raftstore.NotLeaderError](err); ok {
		return &rowraft.NotLeaderError{Shard: shard, Term: nl.Term, Leader: nl.Leader}
	}
	return err
}

// propose logs one entry with one result (not parts) and returns its index.
func (r *replica) propose(ctx context.Context, entry []byte) (rowraft.Index, error) {
	return r.logged(ctx, r.group.Propose(entry))
}

// logged waits until the entry of f, which has one result, is applied, and returns its index.
func (r *replica) logged(ctx context.Context, f *raftstore.Future) (rowraft.Index, error) {
	a, err := r.result(ctx, f)
	if err != nil {
		return 0, err
	}
	return a.Index, a.Parts[0].Err
}

// result waits for the result of an entry.
func (r *replica) result(ctx context.Context, f *raftstore.Future) (*shard.Applied, error) {
	result, _, err := f.Wait(ctx)
	if err != nil {
		return nil, ShardError(r.shard, err)
	}
	switch a := result.(type) {
	case *shard.Applied:
		return a, nil
	case error:
		return nil, a
	}
	return nil, rowraft.Errorf(rowraft.CodeInternal, "apply returned %T", result)
}

// openSession logs a session, unless apply would refuse it. It also logs a resent call: only the log can
// tell whether the session still exists.
func (r *replica) openSession(ctx context.Context, o wire.Opening) (rowraft.Index, error) {
	if err := r.awaitServe(ctx); err != nil {
		return 0, err
	}
	err := r.machine.Sessions.CheckOpen(&o, r.logTime())
	if rowraft.CodeOf(err) == rowraft.CodeSessionExpired { // final for the client: see checkPart
		if _, err := r.confirm(ctx); err != nil {
			return 0, err
		}
		err = r.machine.Sessions.CheckOpen(&o, r.logTime())
	}
	if err != nil {
		return 0, err
	}
	return r.propose(ctx, wire.OpenSessionEntry(r.header(), o))
}

// closeSession logs the end of a session, unless there is none.
func (r *replica) closeSession(ctx context.Context, client rowraft.ClientID, inc rowraft.Incarnation) error {
	if err := r.awaitServe(ctx); err != nil {
		return err
	}
	if r.machine.Sessions.Check(client, inc) != nil {
		return nil
	}
	_, err := r.propose(ctx, wire.CloseSessionEntry(r.header(), client, inc))
	return err
}

// logTime returns the log time that an entry would get now if this replica leads.
func (r *replica) logTime() uint64 {
	last := r.machine.LogTime()
	if r.leading.Load() == 0 {
		return last
	}
	return r.clock.now(last)
}

// ensureTable logs a table of an epoch (0: the current one), unless the shard has it.
func (r *replica) ensureTable(ctx context.Context, s *rowraft.Schema, epoch rowraft.TableEpoch) (rowraft.Index, error) {
	if err := s.Validate(); err != nil {
		return 0, err
	}
	if err := r.mustLead(); err != nil {
		return 0, err
	}
	for _, have := range r.machine.Tables() {
		if have == *s {
			return r.machine.AppliedIndex(), nil
		}
	}
	h := r.header()
	if epoch != 0 {
		h.Epoch = epoch // a restore that comes in between makes apply refuse the entry
	}
	return r.propose(ctx, wire.CreateTableEntry(h, s))
}

// dropTable logs that a table of an epoch is dropped, unless the shard does not have it.
func (r *replica) dropTable(ctx context.Context, id rowraft.TableID, epoch rowraft.TableEpoch) (rowraft.Index, error) {
	if id == 0 || epoch == 0 {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "drop table %#x of epoch %d: want both", uint64(id), epoch)
	}
	// A leader that was just elected may not have applied the table yet.
	if _, err := r.confirm(ctx); err != nil {
		return 0, err
	}
	if _, ok := r.machine.Table(id); !ok {
		return r.machine.AppliedIndex(), nil
	}
	h := r.header()
	h.Epoch = epoch // a restore that comes in between brings other tables
	return r.propose(ctx, wire.DropTableEntry(h, id))
}

// logClock computes log time: the time of the last entry known when this replica began to lead, plus the
// monotonic time since then. A jump of the wall clock has no effect.
type logClock struct {
	mu    sync.Mutex
	base  uint64
	start time.Time
}

func (c *logClock) restart(base uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.start = base, time.Now()
}

// now returns a time not below that of the last entry, which a restore may have set ahead.
func (c *logClock) now(last uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.start.IsZero() {
		return c.base
	}
	now := c.base + uint64(time.Since(c.start))
	if now < last {
		c.base, c.start, now = last, time.Now(), last
	}
	return now
}

// checkVersion refuses an entry of a version that some server of the cluster does not understand. The group
// calls it for every entry.
func (r *replica) checkVersion(entry []byte) error {
	h, _, err := wire.ParseEntryHeader(entry)
	if err != nil {
		return err
	}
	return r.mayLog(r.shard, h.Version)
}
