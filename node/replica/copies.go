package replica

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/traffic"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// This file answers the calls of other servers, which keep copies of rows (hot.Reader).

const (
	// maxHotRows and maxHotBytes limit one answer to HotRows.
	maxHotRows  = 512
	maxHotBytes = 256 << 10
)

// CopyRows reads rows for another server.
func (s *replicaService) CopyRows(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	call := s.h.traffic.Begin(traffic.CopyRows, req.Payload)
	reply, err := s.copyRows(ctx, req)
	call.Replied(reply.GetPayload())
	call.End(err)
	return reply, err
}

func (s *replicaService) copyRows(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	defer rpc.Pool.Release(req.Payload)
	if req.Mode != rowraftv1.ReadMode_READ_MODE_BOUNDED {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "rows for copies in read mode %d: want bounded", req.Mode)
	}
	r, err := s.h.replicaFor(req.Shard, req.MapVersion, req.TableEpoch)
	if err != nil {
		return nil, err
	}
	epoch := uint64(r.machine.Epoch())
	reply, err := r.pull(ctx, req)
	if err == nil && reply.TableEpoch != epoch { // the rows may be of either epoch
		rpc.Pool.Release(reply.Payload)
		return nil, rowraft.Errorf(rowraft.CodeStarting, "shard %d was restored during the read: try again", req.Shard)
	}
	if err == nil {
		r.heat.Add(req.Payload, false)
	}
	return reply, err
}

// HotRows returns the hottest rows of a shard that this server leads.
func (s *replicaService) HotRows(ctx context.Context, req *rowraftv1.HotRowsRequest) (*rowraftv1.PullReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	if err := r.mustServe(); err != nil {
		return nil, err
	}
	segs, keys := r.hottest(time.Duration(min(req.EveryNs, uint64(maxMaxAge))), req.Tables)
	if len(segs) == 0 {
		return &rowraftv1.PullReply{TableEpoch: uint64(r.machine.Epoch())}, nil
	}
	ask := &rowraftv1.PullRequest{Shard: req.Shard, Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED, MaxAgeNs: req.MaxAgeNs,
		Payload: segmentsOf(segs, keys)}
	epoch := uint64(r.machine.Epoch())
	reply, err := r.pull(ctx, ask)
	if err != nil {
		return nil, err
	}
	values := reply.Payload
	defer rpc.Pool.Release(values)
	if reply.TableEpoch != epoch { // the rows may be of either epoch
		return nil, rowraft.Errorf(rowraft.CodeStarting, "shard %d was restored during the read: try again", req.Shard)
	}
	if reply.Payload, err = withKeys(values, keys); err != nil {
		return nil, err
	}
	return reply, nil
}

// hottest returns the rows of some tables that are accessed at least once in a time: a segment for each table, and its
// keys.
func (r *replica) hottest(every time.Duration, tables []uint64) (segs []wire.Segment, keys [][]rowraft.Key) {
	v := r.heat.View(0, maxHotRows)
	enough, bytes := float64(v.Over)/float64(max(every, 1)), 0
	for _, k := range v.Keys {
		if k.Count-k.Error < enough || !slices.Contains(tables, uint64(k.Table)) {
			continue
		}
		t, known := r.machine.Table(k.Table)
		if bytes += 8 + 4*t.Dim; !known || bytes > maxHotBytes {
			continue
		}
		i := slices.IndexFunc(segs, func(s wire.Segment) bool { return s.Table == k.Table })
		if i < 0 {
			i = len(segs)
			segs, keys = append(segs, wire.Segment{Table: k.Table, Dim: t.Dim, DType: rowraft.Float32}), append(keys, nil)
		}
		segs[i].N++
		keys[i] = append(keys[i], k.Key)
	}
	return segs, keys
}

// segmentsOf returns the segments of a pull.
func segmentsOf(segs []wire.Segment, keys [][]rowraft.Key) []byte {
	var payload []byte
	for i, s := range segs {
		s.Flags = wire.FlagNoValues
		at := len(payload)
		payload = append(payload, make([]byte, s.Size())...)
		putKeys(s.Put(payload[at:]).Keys, keys[i])
	}
	return payload
}

// withKeys returns the segments of the reply to a pull with their keys.
func withKeys(values []byte, keys [][]rowraft.Key) ([]byte, error) {
	size := len(values)
	for _, k := range keys {
		size += 8 * len(k)
	}
	payload := rpc.Pool.Bytes(size)[:size]
	out := payload
	for _, k := range keys {
		seg, body, rest, err := wire.ParseSegment(values)
		if err != nil {
			return nil, err
		}
		values = rest
		seg.Flags = 0
		n := seg.Size()
		into := seg.Put(out[:n:n])
		putKeys(into.Keys, k)
		copy(into.Values, body.Values)
		out = out[n:]
	}
	return payload, nil
}

func putKeys(dst []byte, keys []rowraft.Key) {
	for i, k := range keys {
		binary.LittleEndian.PutUint64(dst[8*i:], uint64(k))
	}
}
