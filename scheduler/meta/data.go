package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// splits returns the number of splits in an epoch.
func splits(d *rowraftv1.JobData) uint64 {
	if d.GetSplitExamples() == 0 {
		return 0
	}
	return (d.GetExamples() + d.GetSplitExamples() - 1) / d.GetSplitExamples()
}

// splitRange returns the examples of a split: from inclusive, to exclusive.
func splitRange(d *rowraftv1.JobData, split uint64) (from, to uint64) {
	from = split * d.GetSplitExamples()
	return from, min(from+d.GetSplitExamples(), d.GetExamples())
}

func compareSplit(p *rowraftv1.JobSplit, q *rowraftv1.JobSplit) int {
	return cmp.Or(cmp.Compare(p.GetEpoch(), q.GetEpoch()), cmp.Compare(p.GetSplit(), q.GetSplit()))
}

func checkData(d *rowraftv1.JobData) error {
	const most = 1 << 48
	if d.GetExamples() == 0 {
		if d.GetSplitExamples() != 0 || len(d.GetOpen()) != 0 {
			return fmt.Errorf("data without examples has splits")
		}
		return nil
	}
	if d.GetExamples() > most || d.GetSplitExamples() < 1 || d.GetSplitExamples() > most || d.GetEpochs() > most ||
		splits(d) > MaxSplits {
		return fmt.Errorf("%d examples in splits of %d, %d epochs: want at most 2^48 of each, and %d splits", d.GetExamples(),
			d.GetSplitExamples(), d.GetEpochs(), MaxSplits)
	}
	next := &rowraftv1.JobSplit{Epoch: d.GetEpoch(), Split: d.GetSplit()}
	if d.GetSplit() >= splits(d) || d.GetEpochs() > 0 && d.GetEpoch() > d.GetEpochs() {
		return fmt.Errorf("the next split is %d of epoch %d", d.GetSplit(), d.GetEpoch())
	}
	for i, p := range d.GetOpen() {
		from, to := splitRange(d, p.GetSplit())
		if p.GetUnsettled() != 0 && (p.GetIncarnation() != 0 || !d.GetInLog()) {
			return fmt.Errorf("split %d of epoch %d has both a reader and an unsettled position", p.GetSplit(), p.GetEpoch())
		}
		if compareSplit(p, next) >= 0 || p.GetSplit() >= splits(d) || p.GetOffset() > to-from || i > 0 &&
			compareSplit(d.GetOpen()[i-1], p) >= 0 {
			return fmt.Errorf("split %d of epoch %d, read up to %d, is open", p.GetSplit(), p.GetEpoch(), p.GetOffset())
		}
	}
	return nil
}

// exhausted reports whether every split was assigned to a worker.
func exhausted(d *rowraftv1.JobData) bool { return d.GetEpochs() > 0 && d.GetEpoch() >= d.GetEpochs() }

// allRead reports whether every split was read to its end.
func allRead(d *rowraftv1.JobData) bool { return exhausted(d) && len(d.GetOpen()) == 0 }

// TakeResult is the result of the command take_split.
type TakeResult struct {
	Wait, Done bool
	Split      *rowraftv1.JobSplit
	From, To   uint64
}

// takeSplit assigns a split to a member. Take counts the member's requests: a repeated request gets the same split,
// because its reply was lost.
func (g *registry) takeSplit(c *rowraftv1.MetaTakeSplit) (*TakeResult, error) {
	old, i, err := g.trainingMember(c.GetIdentity())
	if err != nil {
		return nil, err
	}
	if old.GetData().GetExamples() == 0 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "job %s does not have its data divided by the scheduler",
			old.GetJob())
	}
	answer := func(d *rowraftv1.JobData, p *rowraftv1.JobSplit) *TakeResult {
		from, to := splitRange(d, p.GetSplit())
		return &TakeResult{Split: p, From: from, To: to}
	}
	had, id := old.GetMembers()[i].GetTaken(), c.GetIdentity().GetIncarnation()
	if c.GetTake() != had+1 {
		for _, p := range old.GetData().GetOpen() {
			if p.GetIncarnation() == id && p.GetTake() == c.GetTake() {
				return answer(old.GetData(), p), nil // the reply was lost
			}
		}
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s, rank %d: it asks for split number %d and has had %d",
			old.GetJob(), c.GetIdentity().GetRank(), c.GetTake(), had)
	}
	// Only a copy may change: readers hold old outside the lock.
	r := proto.CloneOf(old)
	d, m := r.GetData(), r.Members[i]
	p := freeSplit(r, m.GetRank())
	if p == nil {
		others := slices.ContainsFunc(d.GetOpen(), func(p *rowraftv1.JobSplit) bool { return p.GetIncarnation() != id })
		return &TakeResult{Wait: others, Done: !others}, nil
	}
	m.Taken++
	p.Incarnation, p.Take = id, m.GetTaken()
	p.Reading++
	g.accept(r)
	g.putRun(r)
	return answer(d, p), nil
}

// freeSplit returns the next split for a member: the lowest open split without a worker, otherwise the next split of
// the data, which it opens. It returns nil if there is none for this member. It changes r.
func freeSplit(r *rowraftv1.MetaRun, rank uint32) *rowraftv1.JobSplit {
	d := r.GetData()
	for _, p := range d.GetOpen() {
		if p.GetIncarnation() == 0 && p.GetUnsettled() == 0 && isFor(r, p, rank) {
			return p
		}
	}
	for !exhausted(d) {
		p := &rowraftv1.JobSplit{Epoch: d.GetEpoch(), Split: d.GetSplit()}
		d.Open = append(d.Open, p)
		if d.GetSplit()+1 < splits(d) {
			d.Split++
		} else {
			d.Epoch, d.Split = d.GetEpoch()+1, 0
		}
		if isFor(r, p, rank) {
			return p
		}
	}
	return nil
}

// isFor reports whether a rank may read a split. If splits are assigned by rank, only the owner may, while it trains.
// So the assignment does not depend on the order of requests as long as all workers train.
func isFor(r *rowraftv1.MetaRun, p *rowraftv1.JobSplit, rank uint32) bool {
	if !r.GetData().GetByRank() {
		return true
	}
	owner := uint32((p.GetEpoch()*splits(r.GetData()) + p.GetSplit()) % uint64(r.GetWorkers()))
	i, found := FindMember(r, owner)
	return owner == rank || !found || !IsTraining(r.GetMembers()[i])
}

// endSplit records that a split was read to its end. It does nothing if the member does not have the split: the call is
// a repetition.
func (g *registry) endSplit(c *rowraftv1.MetaEndSplit) error {
	old, _, err := g.trainingMember(c.GetIdentity())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(old.GetData().GetOpen(), func(p *rowraftv1.JobSplit) bool {
		return p.GetEpoch() == c.GetEpoch() && p.GetSplit() == c.GetSplit() &&
			p.GetIncarnation() == c.GetIdentity().GetIncarnation()
	})
	if i < 0 {
		return nil
	}
	r := proto.CloneOf(old)
	r.Data.Open = slices.Delete(r.Data.Open, i, i+1)
	g.putRun(r)
	return nil
}

// ReturnSplits makes the splits of a member that left available to others, from the last known position, and counts the
// examples that will be read again. With exact, the member itself reported reached when it had stopped reading: a split
// that is not there was given to it by an answer that it never received. If the shards know the position (InLog),
// ReturnSplits marks the splits as unsettled, and settleSplits does the rest.
func ReturnSplits(d *rowraftv1.JobData, incarnation uint64, reached []*rowraftv1.SplitReached, exact bool) {
	for i := 0; incarnation != 0 && i < len(d.GetOpen()); i++ {
		p := d.Open[i]
		if p.GetIncarnation() != incarnation {
			continue
		}
		p.Incarnation, p.Take = 0, 0
		from, to := splitRange(d, p.GetSplit())
		size, read := to-from, p.GetOffset()
		for _, at := range reached {
			if at.GetEpoch() == p.GetEpoch() && at.GetSplit() == p.GetSplit() {
				p.Offset = min(max(p.GetOffset(), at.GetAcknowledged()), size)
				read = min(max(at.GetRead(), p.GetOffset()), size)
			}
		}
		// The shards know better how far the reader was: a batch that the worker did not report may have been applied. Until
		// they have answered, no other worker gets the split, or its batches would be applied twice.
		if d.GetInLog() {
			p.Unsettled = incarnation
			continue
		}
		d.AgainKnown += read - p.GetOffset()
		if exact {
			d.AgainMost += read - p.GetOffset()
		} else {
			d.AgainMost += size - p.GetOffset()
		}
	}
}

// settleSplits makes unsettled splits available to others, from the position that the shards know, and counts the
// examples that will be read again.
func (g *registry) settleSplits(c *rowraftv1.MetaSettleSplits) error {
	old := g.run(c.GetJob())
	if old == nil || !bytes.Equal(old.GetRun(), c.GetRun()) {
		return nil // the run is over
	}
	r := proto.CloneOf(old)
	d := r.GetData()
	for _, at := range c.GetSplits() {
		i := slices.IndexFunc(d.GetOpen(), func(p *rowraftv1.JobSplit) bool {
			return p.GetEpoch() == at.GetEpoch() && p.GetSplit() == at.GetSplit() && p.GetUnsettled() == at.GetIncarnation()
		})
		if i < 0 || at.GetIncarnation() == 0 {
			continue // settled already
		}
		p := d.Open[i]
		from, to := splitRange(d, p.GetSplit())
		size := to - from
		p.Unsettled = 0
		p.Offset = min(max(p.GetOffset(), at.GetAcknowledged()), size)
		if at.GetUnknown() {
			d.AgainMost += size - p.GetOffset()
			continue
		}
		again := min(max(at.GetApplied(), p.GetOffset()), size) - p.GetOffset()
		d.AgainKnown, d.AgainMost = d.GetAgainKnown()+again, d.GetAgainMost()+again
	}
	g.putRun(r)
	return nil
}

// MustWait reports whether a member must wait: take_split would return that, or the member requests in advance one of
// the last splits, which the other workers need to stay busy.
func (m *Machine) MustWait(q *rowraftv1.NextSplitRequest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, i, err := m.state.registry.trainingMember(q.GetIdentity())
	if err != nil || q.GetTake() != r.GetMembers()[i].GetTaken()+1 {
		return false
	}
	// Near the end of the data a worker that holds splits in advance leaves others without work, and the run ends later.
	if q.GetAhead() > 0 && !r.GetData().GetByRank() && freeSplits(r.GetData()) <= uint64(len(TrainingRanks(r))) {
		return true
	}
	// freeSplit changes what it gets, and this call must not change the state: it is not in the log.
	r = proto.CloneOf(r)
	others := slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobSplit) bool {
		return p.GetIncarnation() != q.GetIdentity().GetIncarnation()
	})
	return others && freeSplit(r, q.GetIdentity().GetRank()) == nil
}

// freeSplits returns the number of splits without a worker until the end of the data.
func freeSplits(d *rowraftv1.JobData) (n uint64) {
	if d.GetEpochs() == 0 {
		return math.MaxUint64 // the data have no end
	}
	if d.GetEpoch() < d.GetEpochs() {
		n = min(d.GetEpochs()-d.GetEpoch(), MaxSplits)*splits(d) - d.GetSplit()
	}
	for _, p := range d.GetOpen() {
		if p.GetIncarnation() == 0 {
			n++
		}
	}
	return n
}

// HasUnsettled reports whether a run has splits whose last reader left and whose position is not known yet.
func HasUnsettled(r *rowraftv1.MetaRun) bool {
	return slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobSplit) bool { return p.GetUnsettled() != 0 })
}

// ShardPositions is what one shard knows of the positions in a run's data.
type ShardPositions struct {
	Full bool // the shard may have forgotten some positions
	Read map[rowraft.PositionID]uint64
}

// SettledSplits returns the position of each unsettled split. A batch counts as applied if at least one shard has
// applied its share.
func SettledSplits(d *rowraftv1.JobData, shards []ShardPositions) (out []*rowraftv1.SplitSettled) {
	for _, p := range d.GetOpen() {
		if p.GetUnsettled() == 0 {
			continue
		}
		at := &rowraftv1.SplitSettled{Epoch: p.GetEpoch(), Split: p.GetSplit(), Incarnation: p.GetUnsettled()}
		for _, s := range shards {
			acknowledged, applied := rowraft.PositionIDs(p.GetEpoch()*splits(d)+p.GetSplit(), p.GetReading())
			at.Acknowledged = max(at.Acknowledged, s.Read[acknowledged])
			offset, here := s.Read[applied]
			at.Applied = max(at.Applied, offset)
			at.Unknown = at.Unknown || s.Full && !here
		}
		out = append(out, at)
	}
	return out
}
