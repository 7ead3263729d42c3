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

// parts returns the number of parts in an epoch.
func parts(d *rowraftv1.JobData) uint64 {
	if d.GetPartExamples() == 0 {
		return 0
	}
	return (d.GetExamples() + d.GetPartExamples() - 1) / d.GetPartExamples()
}

// partRange returns the examples of a part: from inclusive, to exclusive.
func partRange(d *rowraftv1.JobData, part uint64) (from, to uint64) {
	from = part * d.GetPartExamples()
	return from, min(from+d.GetPartExamples(), d.GetExamples())
}

func comparePart(p *rowraftv1.JobPart, q *rowraftv1.JobPart) int {
	return cmp.Or(cmp.Compare(p.GetEpoch(), q.GetEpoch()), cmp.Compare(p.GetPart(), q.GetPart()))
}

func checkData(d *rowraftv1.JobData) error {
	const most = 1 << 48
	if d.GetExamples() == 0 {
		if d.GetPartExamples() != 0 || len(d.GetOpen()) != 0 {
			return fmt.Errorf("data without examples has parts")
		}
		return nil
	}
	if d.GetExamples() > most || d.GetPartExamples() < 1 || d.GetPartExamples() > most || d.GetEpochs() > most ||
		parts(d) > MaxParts {
		return fmt.Errorf("%d examples in parts of %d, %d epochs: want at most 2^48 of each, and %d parts", d.GetExamples(),
			d.GetPartExamples(), d.GetEpochs(), MaxParts)
	}
	next := &rowraftv1.JobPart{Epoch: d.GetEpoch(), Part: d.GetPart()}
	if d.GetPart() >= parts(d) || d.GetEpochs() > 0 && d.GetEpoch() > d.GetEpochs() {
		return fmt.Errorf("the next part is %d of epoch %d", d.GetPart(), d.GetEpoch())
	}
	for i, p := range d.GetOpen() {
		from, to := partRange(d, p.GetPart())
		if p.GetUnsettled() != 0 && (p.GetIncarnation() != 0 || !d.GetInLog()) {
			return fmt.Errorf("part %d of epoch %d has both a reader and an unsettled position", p.GetPart(), p.GetEpoch())
		}
		if comparePart(p, next) >= 0 || p.GetPart() >= parts(d) || p.GetOffset() > to-from || i > 0 &&
			comparePart(d.GetOpen()[i-1], p) >= 0 {
			return fmt.Errorf("part %d of epoch %d, read up to %d, is open", p.GetPart(), p.GetEpoch(), p.GetOffset())
		}
	}
	return nil
}

// exhausted reports whether every part was assigned to a worker.
func exhausted(d *rowraftv1.JobData) bool { return d.GetEpochs() > 0 && d.GetEpoch() >= d.GetEpochs() }

// allRead reports whether every part was read to its end.
func allRead(d *rowraftv1.JobData) bool { return exhausted(d) && len(d.GetOpen()) == 0 }

// TakeResult is the result of the command take_part.
type TakeResult struct {
	Wait, Done bool
	Part       *rowraftv1.JobPart
	From, To   uint64
}

// takePart assigns a part to a member. Take counts the member's requests: a repeated request gets the same part,
// because its reply was lost.
func (g *registry) takePart(c *rowraftv1.MetaTakePart) (*TakeResult, error) {
	old, i, err := g.trainingMember(c.GetIdentity())
	if err != nil {
		return nil, err
	}
	if old.GetData().GetExamples() == 0 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "job %s does not have its data divided by the scheduler",
			old.GetJob())
	}
	answer := func(d *rowraftv1.JobData, p *rowraftv1.JobPart) *TakeResult {
		from, to := partRange(d, p.GetPart())
		return &TakeResult{Part: p, From: from, To: to}
	}
	had, id := old.GetMembers()[i].GetTaken(), c.GetIdentity().GetIncarnation()
	if c.GetTake() != had+1 {
		for _, p := range old.GetData().GetOpen() {
			if p.GetIncarnation() == id && p.GetTake() == c.GetTake() {
				return answer(old.GetData(), p), nil // the reply was lost
			}
		}
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s, rank %d: it asks for part number %d and has had %d",
			old.GetJob(), c.GetIdentity().GetRank(), c.GetTake(), had)
	}
	// Only a copy may change: readers hold old outside the lock.
	r := proto.CloneOf(old)
	d, m := r.GetData(), r.Members[i]
	p := freePart(r, m.GetRank())
	if p == nil {
		others := slices.ContainsFunc(d.GetOpen(), func(p *rowraftv1.JobPart) bool { return p.GetIncarnation() != id })
		return &TakeResult{Wait: others, Done: !others}, nil
	}
	m.Taken++
	p.Incarnation, p.Take = id, m.GetTaken()
	p.Reading++
	g.putRun(r)
	return answer(d, p), nil
}

// freePart returns the next part for a member: the lowest open part without a worker, otherwise the next part of the
// data, which it opens. It returns nil if there is none for this member. It changes r.
func freePart(r *rowraftv1.MetaRun, rank uint32) *rowraftv1.JobPart {
	d := r.GetData()
	for _, p := range d.GetOpen() {
		if p.GetIncarnation() == 0 && p.GetUnsettled() == 0 && isFor(r, p, rank) {
			return p
		}
	}
	for !exhausted(d) {
		p := &rowraftv1.JobPart{Epoch: d.GetEpoch(), Part: d.GetPart()}
		d.Open = append(d.Open, p)
		if d.GetPart()+1 < parts(d) {
			d.Part++
		} else {
			d.Epoch, d.Part = d.GetEpoch()+1, 0
		}
		if isFor(r, p, rank) {
			return p
		}
	}
	return nil
}

// isFor reports whether a rank may read a part. If parts are assigned by rank, only the owner may, while it trains. So
// the assignment does not depend on the order of requests as long as all workers train.
func isFor(r *rowraftv1.MetaRun, p *rowraftv1.JobPart, rank uint32) bool {
	if !r.GetData().GetByRank() {
		return true
	}
	owner := uint32((p.GetEpoch()*parts(r.GetData()) + p.GetPart()) % uint64(r.GetWorkers()))
	i, found := FindMember(r, owner)
	return owner == rank || !found || !IsTraining(r.GetMembers()[i])
}

// endPart records that a part was read to its end. It does nothing if the member does not have the part: the call is a
// repetition.
func (g *registry) endPart(c *rowraftv1.MetaEndPart) error {
	old, _, err := g.trainingMember(c.GetIdentity())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(old.GetData().GetOpen(), func(p *rowraftv1.JobPart) bool {
		return p.GetEpoch() == c.GetEpoch() && p.GetPart() == c.GetPart() &&
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

// ReturnParts makes the parts of a member that left available to others, from the last known position, and counts the
// examples that will be read again. If the shards know the position (InLog), ReturnParts marks the parts as unsettled,
// and settleParts does the rest.
func ReturnParts(d *rowraftv1.JobData, incarnation uint64, reached []*rowraftv1.PartReached) {
	for i := 0; incarnation != 0 && i < len(d.GetOpen()); i++ {
		p := d.Open[i]
		if p.GetIncarnation() != incarnation {
			continue
		}
		p.Incarnation, p.Take = 0, 0
		from, to := partRange(d, p.GetPart())
		size, read := to-from, p.GetOffset()
		exact := false
		for _, at := range reached {
			if at.GetEpoch() == p.GetEpoch() && at.GetPart() == p.GetPart() {
				p.Offset = min(max(p.GetOffset(), at.GetAcknowledged()), size)
				read = min(max(at.GetRead(), p.GetOffset()), size)
				exact = at.GetExact()
			}
		}
		// The shards know better how far the reader was: a batch that the worker did not report may have been applied. Until
		// they have answered, no other worker gets the part, or its batches would be applied twice.
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

// settleParts makes unsettled parts available to others, from the position that the shards know, and counts the
// examples that will be read again.
func (g *registry) settleParts(c *rowraftv1.MetaSettleParts) error {
	old := g.run(c.GetJob())
	if old == nil || !bytes.Equal(old.GetRun(), c.GetRun()) {
		return nil // the run is over
	}
	r := proto.CloneOf(old)
	d := r.GetData()
	for _, at := range c.GetParts() {
		i := slices.IndexFunc(d.GetOpen(), func(p *rowraftv1.JobPart) bool {
			return p.GetEpoch() == at.GetEpoch() && p.GetPart() == at.GetPart() && p.GetUnsettled() == at.GetIncarnation()
		})
		if i < 0 || at.GetIncarnation() == 0 {
			continue // settled already
		}
		p := d.Open[i]
		from, to := partRange(d, p.GetPart())
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

// MustWait reports whether a member must wait: take_part would return that, or the member requests in advance one of
// the last parts, which the other workers need to stay busy.
func (m *Machine) MustWait(q *rowraftv1.NextPartRequest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, i, err := m.state.registry.trainingMember(q.GetIdentity())
	if err != nil || q.GetTake() != r.GetMembers()[i].GetTaken()+1 {
		return false
	}
	// Near the end of the data a worker that holds parts in advance leaves others without work, and the run ends later.
	if q.GetAhead() > 0 && !r.GetData().GetByRank() && freeParts(r.GetData()) <= uint64(len(TrainingRanks(r))) {
		return true
	}
	// freePart changes what it gets, and this call must not change the state: it is not in the log.
	r = proto.CloneOf(r)
	others := slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobPart) bool {
		return p.GetIncarnation() != q.GetIdentity().GetIncarnation()
	})
	return others && freePart(r, q.GetIdentity().GetRank()) == nil
}

// freeParts returns the number of parts without a worker until the end of the data.
func freeParts(d *rowraftv1.JobData) (n uint64) {
	if d.GetEpochs() == 0 {
		return math.MaxUint64 // the data have no end
	}
	if d.GetEpoch() < d.GetEpochs() {
		n = min(d.GetEpochs()-d.GetEpoch(), MaxParts)*parts(d) - d.GetPart()
	}
	for _, p := range d.GetOpen() {
		if p.GetIncarnation() == 0 {
			n++
		}
	}
	return n
}

// HasUnsettled reports whether a run has parts whose last reader left and whose position is not known yet.
func HasUnsettled(r *rowraftv1.MetaRun) bool {
	return slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobPart) bool { return p.GetUnsettled() != 0 })
}

// ShardPositions is what one shard knows of the positions in a run's data.
type ShardPositions struct {
	Full bool // the shard may have forgotten some positions
	Read map[rowraft.DataPart]uint64
}

// SettledParts returns the position of each unsettled part. A batch counts as applied if at least one shard has applied
// its share.
func SettledParts(d *rowraftv1.JobData, shards []ShardPositions) (out []*rowraftv1.PartSettled) {
	for _, p := range d.GetOpen() {
		if p.GetUnsettled() == 0 {
			continue
		}
		at := &rowraftv1.PartSettled{Epoch: p.GetEpoch(), Part: p.GetPart(), Incarnation: p.GetUnsettled()}
		for _, s := range shards {
			acknowledged, applied := rowraft.ReadParts(p.GetEpoch()*parts(d)+p.GetPart(), p.GetReading())
			at.Acknowledged = max(at.Acknowledged, s.Read[acknowledged])
			offset, here := s.Read[applied]
			at.Applied = max(at.Applied, offset)
			at.Unknown = at.Unknown || s.Full && !here
		}
		out = append(out, at)
	}
	return out
}
