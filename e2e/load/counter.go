package load

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/e2e/history"
)

// Push adds 1 to this counter's dimension of rows and returns how long that took.
func (c *Counter) Push(ctx context.Context, rows []int) (time.Duration, error) {
	amounts := make([]int64, len(rows))
	for i := range amounts {
		amounts[i] = 1
	}
	op, err := c.change(ctx, history.Push, rows, amounts)
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := map[history.Outcome][]int64{history.OK: c.acked, history.Unknown: c.maybe}[op.Outcome]
	if counts == nil {
		return time.Duration(op.Return - op.Call), err
	}
	for _, r := range rows {
		counts[r]++
	}
	return time.Duration(op.Return - op.Call), err
}

// change pushes amounts to rows in this counter's dimension, or deletes them, and
// records what came of it.
func (c *Counter) change(ctx context.Context, kind history.Kind, rows []int, amounts []int64) (history.Op, error) {
	l, dims := c.l, c.l.Dims()
	seg := client.Segment{Table: c.table}
	for _, r := range rows {
		seg.Keys = append(seg.Keys, l.keys[r])
	}
	send := c.c.Delete
	if kind == history.Push {
		send, seg.Values = c.c.Push, make([]float32, len(rows)*dims)
		for i, n := range amounts {
			seg.Values[i*dims+c.Number] = -float32(n)
		}
	}
	late := time.AfterFunc(l.opts.PushPatience, func() {
		l.problem("client %d: a %s has no answer after %v", c.Number, kind, l.opts.PushPatience)
	})
	defer late.Stop()
	op := history.Op{Kind: kind, Client: c.Number, Rows: rows, Call: l.opts.Recorder.Now()}
	ack, err := send(ctx, seg)
	op.Return = l.opts.Recorder.Now()
	switch {
	case err == nil:
		op.Outcome, op.Index = history.OK, indices(ack.Index)
		l.acks.Add(1)
		l.acknowledged(&op)
	case rowraft.CodeOf(err).MaybeApplied() && !(c.Fenced && rowraft.CodeOf(err) == rowraft.CodeSessionExpired):
		op.Outcome, op.Error = history.Unknown, err.Error()
		l.unknown.Add(1)
	default:
		op.Outcome, op.Error = history.Refused, err.Error()
		l.refused.Add(1)
	}
	l.opts.Recorder.Add(op)
	return op, err
}

// acknowledged notes when a push of the load came through.
func (l *Load) acknowledged(op *history.Op) {
	if op.Client >= l.opts.Clients {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastSent[op.Client] = op.Call
	l.gap = max(l.gap, op.Return-l.lastAck)
	l.lastAck = max(l.lastAck, op.Return)
	for _, r := range op.Rows {
		if at := &l.first[l.shardOf(r)]; *at == 0 && op.Call > l.mark {
			*at = op.Return
		}
	}
}

// indices converts applied indices to what a history holds.
func indices(m map[rowraft.ShardID]rowraft.Index) map[int]uint64 {
	out := make(map[int]uint64, len(m))
	for shard, index := range m {
		out[int(shard)] = uint64(index)
	}
	return out
}

// Pull reads rows as counts: out[i][d] is row rows[i] in dimension d.
func (c *Counter) Pull(ctx context.Context, rows []int, linearizable bool) (out [][]int64, err error) {
	how := client.Read{}
	if linearizable {
		how.Mode = client.Linearizable
	}
	return c.read(ctx, rows, how, 0, false)
}

// PullBounded is Pull on any replica; with own it asks for this counter's own pushes, too.
//
// Errors: CodeTooStale when no replica could prove that it is so new.
func (c *Counter) PullBounded(ctx context.Context, rows []int, maxAge time.Duration, maxLag uint64,
	own bool) (out [][]int64, err error) {
	how := client.Read{Mode: client.Bounded, MaxAge: maxAge, MaxLag: maxLag}
	if own {
		how.AtLeast = c.c.Position()
	}
	return c.read(ctx, rows, how, 0, own)
}

// PullReusing is PullBounded with an age of reusedAge, of rows that may come from copies of up to copyAge. The history
// has it as a bounded read that claims the sum of both: a copy may have been reusedAge old when it was pulled.
func (c *Counter) PullReusing(ctx context.Context, rows []int, copyAge time.Duration) ([][]int64, error) {
	return c.read(ctx, rows, client.Read{Mode: client.Bounded, MaxAge: reusedAge}, copyAge, false)
}

// reusedAge is that of all reads that make copies.
const reusedAge = time.Second

var modes = map[client.ReadMode]string{client.Leader: "leader", client.Linearizable: "linearizable",
	client.Bounded: "bounded"}

// read reads rows; with copyAge, from copies of up to that age.
func (c *Counter) read(ctx context.Context, rows []int, how client.Read, copyAge time.Duration,
	own bool) (out [][]int64, err error) {
	l := c.l
	keys, dims := make([]rowraft.Key, len(rows)), l.Dims()
	for i, r := range rows {
		keys[i] = l.keys[r]
	}
	values := make([]float32, len(rows)*dims)
	op := history.Op{
		Kind: history.Pull, Client: c.Number, Rows: rows, Mode: modes[how.Mode], Outcome: history.OK,
		MaxAge: int64(how.MaxAge + copyAge), MaxLag: how.MaxLag, Own: own, Call: l.opts.Recorder.Now(),
	}
	applied := make(map[rowraft.ShardID]rowraft.Index)
	seg := client.Segment{Table: c.table, Keys: keys, Values: values, Applied: applied}
	if copyAge > 0 {
		seg.Reuse.MaxAge, seg.Applied = copyAge, nil // copies have no applied index
	}
	met, err := c.c.PullWith(ctx, how, seg)
	if op.Age, op.Lag = int64(met.Age), met.Lag; copyAge > 0 {
		op.Age = op.MaxAge
	}
	op.Return = l.opts.Recorder.Now()
	if err != nil {
		op.Outcome, op.Error = history.Refused, err.Error()
		l.opts.Recorder.Add(op)
		return nil, err
	}
	for i := range rows {
		row := make([]int64, dims)
		for d := range row {
			v := values[i*dims+d]
			if row[d] = int64(v); float32(row[d]) != v {
				return nil, fmt.Errorf("row %d, dimension %d reads %v: counts are whole", rows[i], d, v)
			}
		}
		out = append(out, row)
	}
	op.Values, op.Index = out, indices(applied)
	l.pulls.Add(1)
	l.opts.Recorder.Add(op)
	return out, nil
}

// Final is what the last reads show.
type Final struct {
	Lost, Doubled int64 // updates of rows
	Details       []string
}

// Final reads all rows and compares them with what was acknowledged. The load must
// be quiet.
func (l *Load) Final(ctx context.Context) (Final, error) {
	var f Final
	reader, err := l.Dial(ctx, l.opts.Clients+Guests-1, client.Options{})
	if err != nil {
		return f, err
	}
	defer reader.Close()
	all := make([]int, len(l.keys))
	for r := range all {
		all[r] = r
	}
	rows, err := reader.Pull(ctx, all, true)
	if err != nil {
		return f, fmt.Errorf("final read: %w", err)
	}
	for _, c := range l.counters() {
		c.mu.Lock()
		for r, row := range rows[:l.opts.Rows] {
			got, least, most := row[c.Number], c.acked[r], c.acked[r]+c.maybe[r]
			if got < least {
				f.Lost += least - got
				f.Details = append(f.Details, fmt.Sprintf("row %d, client %d: %d pushes acknowledged, %d found: %d lost", r,
					c.Number, least, got, least-got))
			}
			if got > most {
				f.Doubled += got - most
				f.Details = append(f.Details,
					fmt.Sprintf("row %d, client %d: %d pushes may have been applied, %d found: %d doubled", r, c.Number, most, got,
						got-most))
			}
		}
		for i := range c.owned {
			f.addOwned(c.Number, &c.owned[i], rows[c.owned[i].row])
		}
		c.mu.Unlock()
	}
	return f, nil
}
