package jobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// ReadData records, for each job whose data the scheduler assigns, the position in the data. REQUIRES: the trainers
// have stopped.
func (m *pauseRound) ReadData(ctx context.Context) error {
	for _, r := range m.c.machine.Runs() {
		if r.GetData().GetExamples() == 0 || m.of(r) == nil {
			continue
		}
		p, err := m.splitsOf(r)
		if err != nil && m.mayLeaveOut(ctx, r.GetJob(), err) {
			m.leaveOut(r.GetJob(), err)
			continue
		} else if err != nil {
			return err
		}
		m.data = append(m.data, p)
	}
	return nil
}

// of returns the members of a run that are in the round, by incarnation; nil if there is none.
func (m *pauseRound) of(r *rowraftv1.MetaRun) (out map[uint64]*pausedTrainer) {
	for _, p := range m.members {
		if id := p.a.member; bytes.Equal(id.GetRun(), r.GetRun()) {
			if out == nil {
				out = make(map[uint64]*pausedTrainer)
			}
			out[id.GetIncarnation()] = p
		}
	}
	return out
}

// splitsOf returns the position of a run in its data. It uses the positions that the stopped trainers reported, and the
// last beat of a trainer that is absent.
func (m *pauseRound) splitsOf(r *rowraftv1.MetaRun) (*checkpoint.Splits, error) {
	there, d := m.of(r), proto.CloneOf(r.GetData())
	d.InLog = false // the trainers' answers are newer than the shards' positions
	// A restored run starts its data from these positions. With an unsettled one it would skip examples or read them
	// twice.
	for _, p := range d.GetOpen() {
		if p.GetUnsettled() != 0 {
			return nil, rowraft.Errorf(rowraft.CodeNoLeader,
				"job %s: how far a trainer that left was in part %d is not settled yet", r.GetJob(), p.GetSplit())
		}
	}
	for _, w := range r.GetMembers() {
		reached := []*rowraftv1.SplitReached(nil)
		p := there[w.GetIncarnation()]
		if p != nil {
			reached = p.splits
		} else if heard, known := m.c.leases.get(w.GetIncarnation()); known {
			reached = heard.beat.GetSplits()
		}
		meta.ReturnSplits(d, w.GetIncarnation(), reached, p != nil)
	}
	out := &checkpoint.Splits{
		Job: r.GetJob(), Examples: d.GetExamples(), SplitExamples: d.GetSplitExamples(), Epochs: d.GetEpochs(),
		Epoch: d.GetEpoch(), Split: d.GetSplit(), AgainKnown: d.GetAgainKnown(), AgainMost: d.GetAgainMost(),
	}
	for _, p := range d.GetOpen() {
		out.Open = append(out.Open, checkpoint.OpenSplit{Epoch: p.GetEpoch(), Split: p.GetSplit(), Offset: p.GetOffset()})
	}
	return out, nil
}

// Blobs returns the states of the trainers, which store wrote. It also writes the positions of readData to the
// destination and returns them.
func (m *pauseRound) Blobs(ctx context.Context, d depot.Depot, name string,
	tag []byte) (out []checkpoint.Blob, err error) {
	for _, p := range m.members {
		out = append(out, p.blob)
	}
	for i, p := range m.data {
		b, err := p.Encode()
		if err != nil {
			return nil, err
		}
		f := checkpoint.File{Name: fmt.Sprintf("job-%04d-%x", i, tag), Bytes: int64(len(b)), SHA256: sha256.Sum256(b)}
		if err := d.Put(ctx, name+"/"+f.Name, b); err != nil {
			return nil, err
		}
		out = append(out, checkpoint.Blob{Name: checkpoint.SplitsBlob(p.Job), File: f})
	}
	return out, nil
}
