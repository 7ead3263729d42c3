package load

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// Onlooker reads the rows of one shard from one server, come what may: the shipped
// client would turn to another. What it is told goes into the history.
type Onlooker struct {
	l    *Load
	conn *grpc.ClientConn
	rows []int                     // numbers of the rows of the shard
	reqs [2]*rowraftv1.PullRequest // linearizable and bounded
	turn atomic.Int64
}

// onlookerMaxAge is that of its bounded reads.
const onlookerMaxAge = time.Second

// Onlook connects to the server that dial reaches. Close it.
func (l *Load) Onlook(ctx context.Context, shard rowraft.ShardID,
	dial func(context.Context) (net.Conn, error)) (*Onlooker, error) {
	conn, err := rpc.Dial("127.0.0.1:1", nil, func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) })
	if err != nil {
		return nil, err
	}
	o := &Onlooker{l: l, conn: conn}
	for r := range l.keys {
		if l.shardOf(r) == int(shard) {
			o.rows = append(o.rows, r)
		}
	}
	w := l.workers[0]
	seg := wire.Segment{Table: w.table.Schema().ID, N: len(o.rows), Dim: l.Dims(), DType: rowraft.Float32,
		Flags: wire.FlagNoValues}
	payload := make([]byte, seg.Size())
	body := seg.Put(payload)
	for i, r := range o.rows {
		binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(l.keys[r]))
	}
	o.reqs[0] = &rowraftv1.PullRequest{MapVersion: math.MaxUint64, Shard: uint32(shard),
		Mode: rowraftv1.ReadMode_READ_MODE_LINEARIZABLE, Payload: payload}
	o.reqs[1] = &rowraftv1.PullRequest{MapVersion: math.MaxUint64, Shard: uint32(shard),
		Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED, MaxAgeNs: uint64(onlookerMaxAge), Payload: payload}
	return o, nil
}

// Close ends the connection.
func (o *Onlooker) Close() error { return o.conn.Close() }

// Read asks for a linearizable read and a bounded one in turn. A refusal is no finding: the
// server may not lead, or not know how old it is.
func (o *Onlooker) Read(ctx context.Context) error {
	op := history.Op{Kind: history.Pull, Client: -1, Rows: o.rows, Mode: "linearizable", Outcome: history.OK,
		Call: o.l.opts.Recorder.Now()}
	req := o.reqs[o.turn.Add(1)%2]
	if req.Mode == rowraftv1.ReadMode_READ_MODE_BOUNDED {
		op.Mode, op.MaxAge = "bounded", int64(onlookerMaxAge)
	}
	reply, err := rowraftv1.NewTableClient(o.conn).Pull(ctx, req)
	op.Return = o.l.opts.Recorder.Now()
	if err != nil {
		return err
	}
	_, body, _, err := wire.ParseSegment(reply.Payload)
	if err != nil {
		return err
	}
	op.Age, op.Lag = int64(reply.AgeNs), reply.Lag
	dims := o.l.Dims()
	for i := range o.rows {
		row := make([]int64, dims)
		for d := range row {
			row[d] = int64(math.Float32frombits(binary.LittleEndian.Uint32(body.Values[4*(i*dims+d):])))
		}
		op.Values = append(op.Values, row)
	}
	o.l.pulls.Add(1)
	o.l.opts.Recorder.Add(op)
	return nil
}
