package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
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

// attend records that checkpoints need the state of a member, whose run and index it gets, and which tables it trains.
func (g *registry) attend(old *rowraftv1.MetaRun, i int, tables []uint64, exists func(id uint64) bool) {
	r := proto.CloneOf(old)
	r.Members[i].Attending, r.Attended = r.Members[i].GetIncarnation(), true
	r.Members[i].AnyTable = len(tables) == 0
	g.accept(r)
	r.Tables = slices.DeleteFunc(append(r.Tables, tables...), func(id uint64) bool { return !exists(id) })
	slices.Sort(r.Tables)
	r.Tables = slices.Compact(r.Tables)
	g.putRun(r)
}

// detach records that checkpoints no longer need the state of a member. It does nothing for a member that another
// worker has replaced in attend.
func (g *registry) detach(d *rowraftv1.MetaDetach) error {
	id := d.GetIdentity()
	old := g.run(id.GetJob())
	i, found := FindMember(old, id.GetRank())
	if !found || !bytes.Equal(old.GetRun(), id.GetRun()) || old.GetMembers()[i].GetAttending() != id.GetIncarnation() {
		return nil
	}
	r := proto.CloneOf(old)
	r.Members[i].Attending = 0
	g.putRun(r)
	return nil
}

// detachRuns detaches all members of the runs for whose tables replaced returns true, because a restore has replaced
// them: their workers must be started again.
func (g *registry) detachRuns(replaced func(tables []uint64) bool) {
	g.runs = slices.Clone(g.runs)
	for i, old := range g.runs {
		if !replaced(old.GetTables()) {
			continue
		}
		r := proto.CloneOf(old)
		r.Tables = nil
		for _, m := range r.GetMembers() {
			m.Attending = 0
		}
		g.runs[i] = r
	}
}

// trainersOfAll returns the trainers that checkpoints need and that name no tables, so that they may train any.
func (g *registry) trainersOfAll() (all []*rowraftv1.MetaTrained) {
	for _, r := range g.runs {
		for _, m := range r.GetMembers() {
			if m.GetAnyTable() && m.GetAttending() != 0 {
				all = append(all, &rowraftv1.MetaTrained{Job: r.GetJob(), Rank: m.GetRank(), Incarnation: m.GetAttending(),
					Owner: OwnerOf(r)})
			}
		}
	}
	return all
}

// ExpectedRanks returns the ranks of a run whose trainers a checkpoint waits for: those that attend by the log, also if
// they have ended their training. If the run is needed, these are all ranks except those that another worker may
// replace. A checkpoint never waits for a worker that has left while others read its splits; while that worker is
// connected, it takes part. Nor does it wait for a trainer of an idle run, in which no worker trains and of which none
// is connected: its trainers may be dead, and only training workers have leases.
func ExpectedRanks(r *rowraftv1.MetaRun, needed, connected bool) (ranks []uint32) {
	training := len(TrainingRanks(r)) > 0
	idle := !connected && !training
	for rank := range r.GetWorkers() {
		var m *rowraftv1.RunMember
		if i, found := FindMember(r, rank); found {
			m = r.GetMembers()[i]
		}
		if training && r.GetData().GetExamples() > 0 && m.GetState() == rowraftv1.MemberState_MEMBER_STATE_STOPPED {
			continue // if it still attends, its process may be dead: it has no lease any more
		}
		if needed && !replaceable(r, m) || m.GetAttending() != 0 && !idle {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Attends reports whether the state has the member as one whose state checkpoints need.
func (m *Machine) Attends(id *rowraftv1.JobIdentity) bool {
	_, member := m.MemberOf(id)
	return member != nil && member.GetAttending() == id.GetIncarnation()
}
