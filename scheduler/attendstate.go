package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// maxTrainers bounds the trainers in the state.
const maxTrainers = 1 << 16

// maxOwnerTrainers bounds the trainers of one owner, so that one owner cannot use up maxTrainers.
const maxOwnerTrainers = maxTrainers / 4

// trainerID identifies a trainer.
type trainerID struct {
	job  string
	rank uint32
}

func (t trainerID) String() string { return fmt.Sprintf("trainer %d of job %s", t.rank, t.job) }

func (t trainerID) compare(o trainerID) int {
	return cmp.Or(cmp.Compare(t.job, o.job), cmp.Compare(t.rank, o.rank))
}

func idOf(t *rowraftv1.MetaTrainer) trainerID { return trainerID{t.GetJob(), t.GetRank()} }

func (s *state) findTrainer(id trainerID) (int, bool) {
	return slices.BinarySearchFunc(s.trainers, id, func(t *rowraftv1.MetaTrainer, id trainerID) int { return idOf(t).compare(id) })
}

// attend records that a trainer has begun. From here on checkpoints need its state. It refuses a trainer that begins
// from a restored checkpoint if its tables do not come from that checkpoint, or if it has trained since the restore.
func (s *state) attend(a *rowraftv1.MetaAttend) error {
	t := a.GetTrainer()
	if err := checkTrainer(t); err != nil {
		return err
	}
	if e := a.GetTableEpoch(); e != 0 && e != uint64(s.cluster.Epoch) {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "%s trains on tables of epoch %d, those of the cluster are of %d: a checkpoint was restored; start it again", idOf(t), e, s.cluster.Epoch)
	}
	for _, id := range t.GetTables() {
		if !hasTable(s.cluster.Tables, rowraft.TableID(id)) {
			return rowraft.Errorf(rowraft.CodeSessionExpired, "%s trains table %#x, which is not in the cluster any more: it was dropped, or a checkpoint of it was restored; start it again", idOf(t), id)
		}
	}
	i, found := s.findTrainer(idOf(t))
	if same := found && slices.Equal(s.trainers[i].GetInstance(), t.GetInstance()); a.GetCheckpoint() != "" && !same {
		from, err := s.comesFrom(a)
		if err != nil {
			return err
		}
		if found {
			return rowraft.Errorf(rowraft.CodePrecondition, "%s has trained since checkpoint %s was restored, and the tables hold it", idOf(t), from.GetName())
		}
	}
	if !found {
		if err := s.roomForTrainer(t); err != nil {
			return err
		}
		s.trainers = slices.Insert(s.trainers, i, nil)
	}
	s.trainers[i] = &rowraftv1.MetaTrainer{Job: t.GetJob(), Rank: t.GetRank(), Trainers: t.GetTrainers(), Instance: t.GetInstance(), Tables: t.GetTables(), Owner: t.GetOwner()}
	s.noteAttended(t)
	return nil
}

// roomForTrainer refuses a trainer beyond the limit of its owner or of the cluster.
func (s *state) roomForTrainer(t *rowraftv1.MetaTrainer) error {
	if len(s.trainers) >= maxTrainers {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: the cluster knows %d trainers, the limit; stop some, or restore a checkpoint of all tables, which forgets those that have stopped", idOf(t), maxTrainers)
	}
	if t.GetOwner() == "" {
		return nil
	}
	n := 0
	for _, o := range s.trainers {
		if o.GetOwner() == t.GetOwner() {
			n++
		}
	}
	if n >= maxOwnerTrainers {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: the cluster knows %d trainers of %s, the limit for one name; stop some, or restore the tables of those that have stopped, which forgets them", idOf(t), n, t.GetOwner())
	}
	return nil
}

// comesFrom returns the checkpoint from which a trainer resumes, if the trainer's tables come from it.
func (s *state) comesFrom(a *rowraftv1.MetaAttend) (*rowraftv1.MetaRestored, error) {
	if len(s.restored) == 0 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables do not come from checkpoint %s, nor from any other", a.GetCheckpoint())
	}
	for _, from := range s.restored {
		if from.GetId() != a.GetCheckpoint() {
			continue
		}
		for _, t := range s.cluster.Tables {
			if id := uint64(t.ID); slices.Contains(a.GetTrainer().GetTables(), id) && !slices.Contains(from.GetTables(), id) {
				return nil, rowraft.Errorf(rowraft.CodePrecondition, "table %s does not come from checkpoint %s/%s", t.Name, from.GetDestination(), from.GetName())
			}
		}
		return from, nil
	}
	last := s.restored[0]
	return nil, rowraft.Errorf(rowraft.CodePrecondition, "the cluster's tables come from checkpoint %s/%s, another one", last.GetDestination(), last.GetName())
}

func checkTrainer(t *rowraftv1.MetaTrainer) error {
	if n := len(t.GetJob()); n < 1 || n > maxNameLength || len(t.GetOwner()) > maxNameLength || t.GetTrainers() > MaxWorkers || t.GetRank() >= t.GetTrainers() || len(t.GetInstance()) != 16 || len(t.GetTables()) > MaxTables {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "trainer %d of %d, a job's name of %d bytes, an instance of %d: want a rank below the number of trainers, at most %d, 1 to %d bytes, and 16",
			t.GetRank(), t.GetTrainers(), len(t.GetJob()), len(t.GetInstance()), MaxWorkers, maxNameLength)
	}
	return nil
}

// leave records that a trainer has left. It does nothing for a trainer that another process has replaced.
func (s *state) leave(l *rowraftv1.MetaLeave) error {
	i, found := s.findTrainer(trainerID{l.GetJob(), l.GetRank()})
	if !found || !slices.Equal(s.trainers[i].GetInstance(), l.GetInstance()) {
		return nil
	}
	t := s.trainers[i]
	if !s.trainsRestored(t) {
		s.trainers = slices.Delete(slices.Clone(s.trainers), i, i+1)
		return nil
	}
	s.trainers[i] = &rowraftv1.MetaTrainer{Job: t.GetJob(), Rank: t.GetRank(), Trainers: t.GetTrainers(), Instance: t.GetInstance(), Tables: t.GetTables(), Owner: t.GetOwner(), Left: true}
	return nil
}

// trainsRestored reports whether a trainer may train a table that comes from a checkpoint; a trainer that names no
// tables may train any. Only such a trainer stays in the state after it left: a later process with its rank must not
// resume from that checkpoint.
func (s *state) trainsRestored(t *rowraftv1.MetaTrainer) bool {
	return slices.ContainsFunc(s.restored, func(from *rowraftv1.MetaRestored) bool {
		return len(t.GetTables()) == 0 || slices.ContainsFunc(from.GetTables(), func(id uint64) bool { return slices.Contains(t.GetTables(), id) })
	})
}

// trainersFromProto loads the trainers of a snapshot and checks them.
func (s *state) trainersFromProto(p *rowraftv1.MetaState) error {
	s.restored, s.trainers, s.lastRestore = p.GetRestored(), p.GetTrainers(), uint16(p.GetLastRestore())
	for i, t := range s.trainers {
		if err := checkTrainer(t); err != nil {
			return err
		}
		if i > 0 && idOf(s.trainers[i-1]).compare(idOf(t)) >= 0 {
			return fmt.Errorf("trainers are out of order")
		}
	}
	if len(s.trainers) > maxTrainers {
		return fmt.Errorf("%d trainers", len(s.trainers))
	}
	return nil
}

// allTrainers returns the trainers in the state, by job and rank.
func (m *machine) allTrainers() []*rowraftv1.MetaTrainer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.trainers)
}

// atWork returns the trainers that have begun and not left, by job and rank.
func (m *machine) atWork() []*rowraftv1.MetaTrainer {
	return slices.DeleteFunc(m.allTrainers(), (*rowraftv1.MetaTrainer).GetLeft)
}

// knows reports whether the state has this process as the trainer, and it has not left.
func (m *machine) knows(t *rowraftv1.MetaTrainer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := m.state.findTrainer(idOf(t))
	return found && slices.Equal(m.state.trainers[i].GetInstance(), t.GetInstance()) && !m.state.trainers[i].GetLeft()
}

// restored returns the checkpoints that tables come from, the last restore first, and the table epoch.
func (m *machine) restored() ([]*rowraftv1.MetaRestored, rowraft.TableEpoch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.restored, m.state.cluster.Epoch
}
