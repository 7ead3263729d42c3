package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// Scan calls rows with every row of the table, a batch at a time, in the order of the slots and of the keys
// within one slot. The slices belong to Scan, which overwrites them after rows returns. An error of rows
// ends the scan, and Scan returns it.
//
// No key comes twice. Scan reads a slot at one moment; if its rows take more than 4 MiB, it reads each
// chunk of 1 MiB at one moment. Different slots are of different moments. So a scan concurrent with pushes
// is not the table at one point in time; only a checkpoint is. A scan includes every push that was
// acknowledged before the call. When a server fails, Scan continues at the next slot with the next leader.
//
// Scan holds a few messages of about 1 MiB, whatever the size of the table.
//
// Errors: CodeTableNotFound; CodeSessionExpired if a checkpoint was restored meanwhile; otherwise the last
// answer of the cluster when ctx ends.
func (t *Table) Scan(ctx context.Context, rows func(keys []rowraft.Key, weights []float32) error) error {
	s := scan{t: t, rows: rows}
	for s.slot < uint32(t.slots) {
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("scan table %s: %w", t.schema.Name, err)
		}
	}
	return nil
}

// scan is the state of one Scan.
type scan struct {
	t    *Table
	rows func([]rowraft.Key, []float32) error
	told error // returned by rows

	epoch uint64 // the epoch of the tables, from the first reply; 0 before
	slot  uint32 // with key: where the next message begins
	key   uint64
	b     route.Backoff

	keys   []rowraft.Key // keys and values of one message, reused
	values []float32
}

// run reads the slots from s.slot to the last one that the same shard holds without a gap.
func (s *scan) run(ctx context.Context) error {
	c := s.t.c
	m := c.cluster.Load()
	if err := ofCluster(m, []Segment{{Table: s.t}}); err != nil {
		return err
	}
	shard, last := runOf(m, s.slot)
	_, err := c.router.onLeader(ctx, m.Cluster, shard, callKind{direct: true}, func(at server) error {
		err := s.try(ctx, m, shard, last, at)
		if rowraft.CodeOf(err) == rowraft.CodeTableNotFound && c.cluster.named(s.t.schema.ID) {
			return rowraft.Errorf(rowraft.CodeStarting, "the shard does not have every table of the cluster map yet: %w", err)
		}
		return err
	})
	if s.told != nil {
		return s.told
	}
	if ws, ok := errors.AsType[*rowraft.WrongShardError](err); ok && m.SlotsVersion < ws.Want {
		c.cluster.askForMap() // the loop of Scan splits by the new map
		if c.pause(ctx, &s.b, 0) == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("shard %d: %w", shard, err)
	}
	return nil
}

// runOf returns the shard of slot first, and the last slot of the run of consecutive slots in that shard
// that begins at first.
func runOf(m *clustermap.Map, first uint32) (shard rowraft.ShardID, last uint32) {
	shard, last = m.ShardOf(rowraft.Slot(first)), first
	for last+1 < uint32(m.SlotCount()) && m.ShardOf(rowraft.Slot(last+1)) == shard {
		last++
	}
	return shard, last
}

// errQuiet ends a try on a server that stops sending in the middle of a scan.
var errQuiet = errors.New("no message within the time of a try")

// try reads from one server until the server fails or the slots end. The whole try has no time limit,
// because its length depends on the table. The wait for each message has the limit of any other try.
func (s *scan) try(ctx context.Context, m *clustermap.Map, shard rowraft.ShardID, last uint32, at server) error {
	c := s.t.c
	if at.addr == "" {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for this shard")
	}
	conn, err := c.conns.Get(at.addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(rpc.WithCluster(ctx, at.home))
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(errClosed) })()
	patiently := func(f func() error) error {
		quiet, answered := context.WithCancel(ctx)
		defer answered()
		defer c.router.watchSlowAttempt(quiet, cancel, shard, at).Stop()
		defer time.AfterFunc(c.opts.AttemptTimeout, func() { cancel(errQuiet) }).Stop()
		return rpc.FromStatus(f())
	}
	err = s.read(ctx, rowraftv1.NewTableClient(conn), m, shard, last, patiently)
	if cause := context.Cause(ctx); err != nil && (cause == errSilent || cause == errQuiet) {
		err = rowraft.Errorf(rowraft.CodeDeadline, "%w", cause)
	}
	if err != nil {
		return fmt.Errorf("server %s: %w", at.addr, err)
	}
	return nil
}

// read makes one Scan call and passes its rows on. patiently wraps each operation that waits for the
// server.
func (s *scan) read(ctx context.Context, stub rowraftv1.TableClient, m *clustermap.Map, shard rowraft.ShardID,
	last uint32, patiently func(func() error) error) error {
	c := s.t.c
	var stream grpc.ServerStreamingClient[rowraftv1.ScanReply]
	err := patiently(func() (err error) {
		stream, err = stub.Scan(ctx, &rowraftv1.ScanRequest{
			MapVersion: uint64(m.SlotsVersion), Shard: uint32(shard), TableEpoch: s.epoch, MinIndex: c.acked.at(shard).Load(),
			Table: uint64(s.t.schema.ID), Dtype: uint32(c.opts.DType), FirstSlot: s.slot, FirstKey: s.key, LastSlot: last,
		})
		return err
	})
	if err != nil {
		return err
	}
	for s.slot <= last {
		var reply *rowraftv1.ScanReply
		err := patiently(func() (err error) { reply, err = stream.Recv(); return err })
		if errors.Is(err, io.EOF) {
			return rowraft.Errorf(rowraft.CodeCorrupt, "the scan ended before slot %d", s.slot)
		}
		if err != nil {
			return err
		}
		err = s.take(reply, last)
		rpc.Pool.Release(reply.Payload)
		if err != nil {
			return err
		}
	}
	return nil
}

// take passes the rows of a message on and records where the next message begins.
func (s *scan) take(reply *rowraftv1.ScanReply, last uint32) error {
	if reply.NextSlot < s.slot || reply.NextSlot == s.slot && reply.NextKey <= s.key || reply.NextSlot > last+1 ||
		reply.NextSlot == last+1 && reply.NextKey != 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "a scan went from slot %d key %d to slot %d key %d, of slots up to %d",
			s.slot, s.key, reply.NextSlot, reply.NextKey, last)
	}
	if s.epoch != 0 && reply.TableEpoch != s.epoch {
		return rowraft.Errorf(rowraft.CodeSessionExpired,
			"the scan began with the tables of epoch %d, a restore has brought those of %d", s.epoch, reply.TableEpoch)
	}
	s.epoch = reply.TableEpoch
	if err := s.parse(reply); err != nil {
		return err
	}
	if len(s.keys) > 0 {
		if s.told = s.rows(s.keys, s.values); s.told != nil {
			return rowraft.Errorf(rowraft.CodePrecondition, "the caller ended the scan")
		}
	}
	s.slot, s.key = reply.NextSlot, reply.NextKey
	return nil
}

// parse fills keys and values with the rows of a message. Each row must lie between the end of the previous
// message and the place that this message names as next, in ascending order: so no row comes twice.
func (s *scan) parse(reply *rowraftv1.ScanReply) error {
	s.keys, s.values = s.keys[:0], s.values[:0]
	slot, key := s.slot, s.key
	dim, dtype := s.t.schema.Dim, s.t.c.opts.DType
	for payload := reply.Payload; len(payload) > 0; {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return rowraft.Errorf(rowraft.CodeCorrupt, "a message of a scan: %w", err)
		}
		if seg.Table != s.t.schema.ID || seg.Dim != dim || seg.DType != dtype || seg.Flags != 0 {
			return rowraft.Errorf(rowraft.CodeCorrupt,
				"a message of a scan has rows of table %d with %d %s and flags %#x: want table %d with %d %s", seg.Table, seg.Dim,
				seg.DType, seg.Flags, s.t.schema.ID, dim, dtype)
		}
		for i := range seg.N {
			k := body.Key(i)
			at := uint32(s.t.Slot(k))
			if at < slot || at == slot && uint64(k) < key || at > reply.NextSlot || at == reply.NextSlot &&
				uint64(k) >= reply.NextKey {
				return rowraft.Errorf(rowraft.CodeCorrupt, "a message of a scan has key %d of slot %d out of its order", k, at)
			}
			if slot, key = at, uint64(k)+1; key == 0 { // k was the largest key
				slot++
			}
			s.keys = append(s.keys, k)
		}
		n := len(s.values)
		s.values = slices.Grow(s.values, seg.N*dim)[:n+seg.N*dim]
		wire.GetFloats(s.values[n:], dtype, body.Values)
		payload = rest
	}
	return nil
}
