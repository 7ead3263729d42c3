package meta

import (
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

// attend records that a trainer may train its tables. It refuses a trainer of tables that do not exist. It refuses a
// trainer that resumes from a restored checkpoint if its tables do not come from that checkpoint, or if another worker
// with its rank has trained them since the restore; again means that it does not resume, because it has attended
// before.
func (c *catalog) attend(a *rowraftv1.MetaAttend, t *rowraftv1.MetaTrained, again bool) error {
	id := TrainerID{t.GetJob(), t.GetRank()}
	if n := len(a.GetTables()); n > MaxTables {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s trains %d tables, the limit is %d", id, n, MaxTables)
	}
	if e := a.GetTableEpoch(); e != 0 && e != uint64(c.epoch) {
		return rowraft.Errorf(rowraft.CodeSessionExpired,
			"%s trains on tables of epoch %d, those of the cluster are of %d: a checkpoint was restored; start it again", id, e,
			c.epoch)
	}
	for _, table := range a.GetTables() {
		if !c.has(table) {
			return rowraft.Errorf(rowraft.CodeSessionExpired,
				"%s trains table %#x, which was dropped, or replaced by a restore; start it again", id, table)
		}
	}
	if a.GetCheckpoint() != "" && !again {
		if err := c.checkResume(a, id, t.GetIncarnation()); err != nil {
			return err
		}
	}
	return c.noteTrained(t, a.GetTables())
}

// has reports whether a table with this id exists.
func (c *catalog) has(id uint64) bool { return HasTable(c.tables, rowraft.TableID(id)) }

func findTrained(from *rowraftv1.MetaRestored, id TrainerID) (int, bool) {
	return slices.BinarySearchFunc(from.GetTrained(), id, func(t *rowraftv1.MetaTrained, id TrainerID) int {
		return TrainerID{t.GetJob(), t.GetRank()}.Compare(id)
	})
}

// mayTrain reports whether a trainer of these tables may train tables that come from a restored checkpoint. A trainer
// that names no tables may train any.
func mayTrain(tables []uint64, from *rowraftv1.MetaRestored) bool {
	return len(tables) == 0 || slices.ContainsFunc(from.GetTables(), func(id uint64) bool {
		return slices.Contains(tables, id)
	})
}

// noteTrained records, at each restored checkpoint with one of these tables, that t may train them from now on. A later
// worker with this rank must not resume from such a checkpoint.
func (c *catalog) noteTrained(t *rowraftv1.MetaTrained, tables []uint64) error {
	next := slices.Clone(c.restored)
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
		next[i] = &rowraftv1.MetaRestored{Id: from.GetId(), Destination: from.GetDestination(), Name: from.GetName(),
			Tables: from.GetTables(), Trained: list}
	}
	if err := c.roomForTrained(added); err != nil {
		return err
	}
	c.restored = next
	return nil
}

// roomForTrained refuses more entries than the limit of an owner or of the cluster.
func (c *catalog) roomForTrained(added []*rowraftv1.MetaTrained) error {
	if len(added) == 0 {
		return nil
	}
	all, own := 0, make(map[string]int)
	for _, from := range c.restored {
		for _, t := range from.GetTrained() {
			all++
			own[t.GetOwner()]++
		}
	}
	for _, t := range added {
		id, owner := TrainerID{t.GetJob(), t.GetRank()}, t.GetOwner()
		switch {
		case all >= maxTrained:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: the cluster remembers %d trainers of restored tables, the "+
				"limit is %d; restore a checkpoint of all tables, which forgets them", id, all, maxTrained)
		case owner != "" && own[owner] >= maxOwnerTrained:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: the cluster remembers %d trainers of restored tables of "+
				"%s, the limit for one name is %d; restore or drop the tables of those that have stopped, which forgets them", id,
				own[owner], owner, maxOwnerTrained)
		}
		all++
		own[owner]++
	}
	return nil
}

// checkResume refuses a trainer that resumes from a checkpoint if its tables do not all come from that checkpoint, or
// if another worker with its rank has trained one of them since the restore. The tables may come from several restores
// of the checkpoint.
func (c *catalog) checkResume(a *rowraftv1.MetaAttend, id TrainerID, incarnation uint64) error {
	if len(c.restored) == 0 {
		return rowraft.Errorf(rowraft.CodePrecondition,
			"the cluster's tables do not come from checkpoint %s, nor from any other", a.GetCheckpoint())
	}
	var restored []uint64 // tables that come from the checkpoint
	var from *rowraftv1.MetaRestored
	for _, r := range c.restored {
		if r.GetId() != a.GetCheckpoint() {
			continue
		}
		from, restored = r, append(restored, r.GetTables()...)
		if at, found := findTrained(r, id); found && r.GetTrained()[at].GetIncarnation() != incarnation &&
			mayTrain(a.GetTables(), r) {
			return rowraft.Errorf(rowraft.CodePrecondition,
				"%s has trained since checkpoint %s was restored, and the tables hold it", id, r.GetName())
		}
	}
	if from == nil {
		last := c.restored[0]
		return rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables come from checkpoint %s/%s, another one",
			last.GetDestination(), last.GetName())
	}
	for _, t := range c.tables {
		if id := uint64(t.ID); slices.Contains(a.GetTables(), id) && !slices.Contains(restored, id) {
			return rowraft.Errorf(rowraft.CodePrecondition, "table %s does not come from checkpoint %s/%s", t.Name,
				from.GetDestination(), from.GetName())
		}
	}
	return nil
}

// comeFrom records the checkpoint that tables come from, and the trainers that may train them already.
func (c *catalog) comeFrom(r *rowraftv1.MetaRestore, tables []rowraft.Schema, trained []*rowraftv1.MetaTrained) {
	if r.GetSource() == nil {
		return
	}
	from := proto.CloneOf(r.GetSource())
	from.Tables, from.Trained = nil, trained
	for _, t := range tables {
		from.Tables = append(from.Tables, uint64(t.ID))
	}
	slices.Sort(from.Tables)
	c.restored = append([]*rowraftv1.MetaRestored{from}, c.restored...)
}

// forgetSource removes a dropped table from the record of its checkpoint. A record without tables is deleted.
func (c *catalog) forgetSource(id rowraft.TableID) {
	i := slices.IndexFunc(c.restored, func(r *rowraftv1.MetaRestored) bool {
		return slices.Contains(r.GetTables(), uint64(id))
	})
	if i < 0 {
		return
	}
	from := proto.CloneOf(c.restored[i])
	from.Tables = slices.DeleteFunc(from.Tables, func(t uint64) bool { return t == uint64(id) })
	c.restored = slices.Clone(c.restored)
	if c.restored[i] = from; len(from.Tables) == 0 {
		c.restored = slices.Delete(c.restored, i, i+1)
	}
}

// loadSources loads the restored checkpoints of a snapshot and checks them.
func (c *catalog) loadSources(p *rowraftv1.MetaState) error {
	c.restored, c.lastRestore = p.GetRestored(), uint16(p.GetLastRestore())
	all := 0
	for _, from := range c.restored {
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

// Sources returns the checkpoints that tables come from, the last restore first, and the table epoch.
func (m *Machine) Sources() ([]*rowraftv1.MetaRestored, rowraft.TableEpoch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.catalog.restored, m.state.catalog.epoch
}
