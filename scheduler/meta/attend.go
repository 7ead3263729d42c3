package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// maxTrained bounds the entries of all lists MetaRestored.trained.
	maxTrained = 1 << 16
	// maxOwnerTrained bounds the entries of one owner, so that one owner cannot use up maxTrained.
	maxOwnerTrained = maxTrained / 4
)

// TrainerID identifies a trainer.
type TrainerID struct {
	Job  string
	Rank uint32
}

func (t TrainerID) String() string { return fmt.Sprintf("trainer %d of job %s", t.Rank, t.Job) }

// Compare orders trainers by job, then by rank.
func (t TrainerID) Compare(o TrainerID) int {
	return cmp.Or(cmp.Compare(t.Job, o.Job), cmp.Compare(t.Rank, o.Rank))
}

// attend records that checkpoints need the state of a member. It refuses a member that resumes from a restored
// checkpoint if its tables do not come from that checkpoint, or if another worker with its rank has trained them since
// the restore.
func (s *state) attend(a *rowraftv1.MetaAttend) error {
	old, i, err := s.member(a.GetIdentity())
	if err != nil {
		return err
	}
	m := old.GetMembers()[i]
	id := TrainerID{old.GetJob(), m.GetRank()}
	if n := len(a.GetTables()); n > MaxTables {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s trains %d tables, the limit is %d", id, n, MaxTables)
	}
	if e := a.GetTableEpoch(); e != 0 && e != uint64(s.cluster.Epoch) {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "%s trains on tables of epoch %d, those of the cluster are of %d: a checkpoint was restored; start it again", id, e, s.cluster.Epoch)
	}
	for _, table := range a.GetTables() {
		if !HasTable(s.cluster.Tables, rowraft.TableID(table)) {
			return rowraft.Errorf(rowraft.CodeSessionExpired, "%s trains table %#x, which was dropped, or replaced by a restore; start it again", id, table)
		}
	}
	if a.GetCheckpoint() != "" && m.GetAttending() != m.GetIncarnation() {
		if err := s.checkResume(a, id, m.GetIncarnation()); err != nil {
			return err
		}
	}
	if err := s.noteTrained(&rowraftv1.MetaTrained{Job: id.Job, Rank: id.Rank, Incarnation: m.GetIncarnation(), Owner: OwnerOf(old)}, a.GetTables()); err != nil {
		return err
	}
	r := proto.CloneOf(old)
	r.Members[i].Attending, r.Attended = m.GetIncarnation(), true
	r.Tables = slices.DeleteFunc(append(r.Tables, a.GetTables()...), func(id uint64) bool { return !HasTable(s.cluster.Tables, rowraft.TableID(id)) })
	slices.Sort(r.Tables)
	r.Tables = slices.Compact(r.Tables)
	s.putRun(r)
	return nil
}

// detach records that checkpoints no longer need the state of a member. It does nothing for a member that another
// worker has replaced in attend.
func (s *state) detach(d *rowraftv1.MetaDetach) error {
	id := d.GetIdentity()
	old := s.run(id.GetJob())
	i, found := FindMember(old, id.GetRank())
	if !found || !bytes.Equal(old.GetRun(), id.GetRun()) || old.GetMembers()[i].GetAttending() != id.GetIncarnation() {
		return nil
	}
	r := proto.CloneOf(old)
	r.Members[i].Attending = 0
	s.putRun(r)
	return nil
}

// detachRuns detaches all members of the runs for which replaced returns true, because a restore has replaced their
// tables: their workers must be started again.
func (s *state) detachRuns(replaced func(*rowraftv1.MetaRun) bool) {
	s.runs = slices.Clone(s.runs)
	for i, old := range s.runs {
		if !replaced(old) {
			continue
		}
		r := proto.CloneOf(old)
		r.Tables = nil
		for _, m := range r.GetMembers() {
			m.Attending = 0
		}
		s.runs[i] = r
	}
}

func findTrained(from *rowraftv1.MetaRestored, id TrainerID) (int, bool) {
	return slices.BinarySearchFunc(from.GetTrained(), id, func(t *rowraftv1.MetaTrained, id TrainerID) int {
		return TrainerID{t.GetJob(), t.GetRank()}.Compare(id)
	})
}

// mayTrain reports whether a trainer of these tables may train tables that come from a restored checkpoint. A trainer
// that names no tables may train any.
func mayTrain(tables []uint64, from *rowraftv1.MetaRestored) bool {
	return len(tables) == 0 || slices.ContainsFunc(from.GetTables(), func(id uint64) bool { return slices.Contains(tables, id) })
}

// noteTrained records, at each restored checkpoint with one of these tables, that t may train them from now on. A later
// worker with this rank must not resume from such a checkpoint.
func (s *state) noteTrained(t *rowraftv1.MetaTrained, tables []uint64) error {
	next := slices.Clone(s.restored)
	var added []*rowraftv1.MetaTrained
	for i, from := range next {
		if !mayTrain(tables, from) {
			continue
		}
		list := slices.Clone(from.GetTrained())
		at, found := findTrained(from, TrainerID{t.GetJob(), t.GetRank()})
		if !found {
			added = append(added, t)
			list = slices.Insert(list, at, nil)
		}
		list[at] = t
		next[i] = &rowraftv1.MetaRestored{Id: from.GetId(), Destination: from.GetDestination(), Name: from.GetName(), Tables: from.GetTables(), Trained: list}
	}
	if err := s.roomForTrained(added); err != nil {
		return err
	}
	s.restored = next
	return nil
}

// roomForTrained refuses more entries than the limit of an owner or of the cluster.
func (s *state) roomForTrained(added []*rowraftv1.MetaTrained) error {
	all, own := 0, make(map[string]int)
	for _, from := range s.restored {
		for _, t := range from.GetTrained() {
			all++
			own[t.GetOwner()]++
		}
	}
	for _, t := range added {
		id, owner := TrainerID{t.GetJob(), t.GetRank()}, t.GetOwner()
		switch {
		case all >= maxTrained:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: the cluster remembers %d trainers of restored tables, the limit is %d; restore a checkpoint of all tables, which forgets them", id, all, maxTrained)
		case owner != "" && own[owner] >= maxOwnerTrained:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: the cluster remembers %d trainers of restored tables of %s, the limit for one name is %d; restore or drop the tables of those that have stopped, which forgets them", id, own[owner], owner, maxOwnerTrained)
		}
		all++
		own[owner]++
	}
	return nil
}

// trainersOfAll returns the trainers that checkpoints need and that name no tables, so that they may train any.
func (s *state) trainersOfAll() (all []*rowraftv1.MetaTrained) {
	for _, r := range s.runs {
		for _, m := range r.GetMembers() {
			if len(r.GetTables()) == 0 && m.GetAttending() != 0 {
				all = append(all, &rowraftv1.MetaTrained{Job: r.GetJob(), Rank: m.GetRank(), Incarnation: m.GetAttending(), Owner: OwnerOf(r)})
			}
		}
	}
	return all
}

// checkResume refuses a trainer that resumes from a checkpoint if its tables do not all come from that checkpoint, or if
// another worker with its rank has trained one of them since the restore. The tables may come from several restores of
// the checkpoint.
func (s *state) checkResume(a *rowraftv1.MetaAttend, id TrainerID, incarnation uint64) error {
	if len(s.restored) == 0 {
		return rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables do not come from checkpoint %s, nor from any other", a.GetCheckpoint())
	}
	var restored []uint64 // tables that come from the checkpoint
	var from *rowraftv1.MetaRestored
	for _, r := range s.restored {
		if r.GetId() != a.GetCheckpoint() {
			continue
		}
		from, restored = r, append(restored, r.GetTables()...)
		if at, found := findTrained(r, id); found && r.GetTrained()[at].GetIncarnation() != incarnation && mayTrain(a.GetTables(), r) {
			return rowraft.Errorf(rowraft.CodePrecondition, "%s has trained since checkpoint %s was restored, and the tables hold it", id, r.GetName())
		}
	}
	if from == nil {
		last := s.restored[0]
		return rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables come from checkpoint %s/%s, another one", last.GetDestination(), last.GetName())
	}
	for _, t := range s.cluster.Tables {
		if id := uint64(t.ID); slices.Contains(a.GetTables(), id) && !slices.Contains(restored, id) {
			return rowraft.Errorf(rowraft.CodePrecondition, "table %s does not come from checkpoint %s/%s", t.Name, from.GetDestination(), from.GetName())
		}
	}
	return nil
}

// ExpectedRanks returns the ranks of a run whose trainers a checkpoint waits for: those that attend by the log, also if
// they have ended their training. If the run is needed, these are all ranks except those that another worker may replace.
// A checkpoint waits for no trainer of an idle run, in which no worker trains and of which none is connected: its trainers
// may be dead, and only training workers have leases.
func ExpectedRanks(r *rowraftv1.MetaRun, needed, connected bool) (ranks []uint32) {
	idle := !connected && len(TrainingRanks(r)) == 0
	for rank := range r.GetWorkers() {
		var m *rowraftv1.RunMember
		if i, found := FindMember(r, rank); found {
			m = r.GetMembers()[i]
		}
		if needed && !replaceable(r, m) || m.GetAttending() != 0 && !idle {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// restoredFromProto loads the restored checkpoints of a snapshot and checks them.
func (s *state) restoredFromProto(p *rowraftv1.MetaState) error {
	s.restored, s.lastRestore = p.GetRestored(), uint16(p.GetLastRestore())
	all := 0
	for _, from := range s.restored {
		for i, t := range from.GetTrained() {
			id := TrainerID{t.GetJob(), t.GetRank()}
			if n := len(id.Job); n < 1 || n > maxNameLength || id.Rank >= MaxWorkers || len(t.GetOwner()) > maxNameLength {
				return fmt.Errorf("trainer %d of a job whose name has %d bytes", id.Rank, n)
			}
			if last := from.GetTrained()[max(i-1, 0)]; i > 0 && id.Compare(TrainerID{last.GetJob(), last.GetRank()}) <= 0 {
				return fmt.Errorf("trainers are out of order")
			}
		}
		all += len(from.GetTrained())
	}
	if all > maxTrained {
		return fmt.Errorf("%d trainers of restored tables, the limit is %d", all, maxTrained)
	}
	return nil
}

// Attends reports whether the state has the member as one whose state checkpoints need.
func (m *Machine) Attends(id *rowraftv1.JobIdentity) bool {
	_, member := m.MemberOf(id)
	return member != nil && member.GetAttending() == id.GetIncarnation()
}

// Sources returns the checkpoints that tables come from, the last restore first, and the table epoch.
func (m *Machine) Sources() ([]*rowraftv1.MetaRestored, rowraft.TableEpoch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.restored, m.state.cluster.Epoch
}
