package node

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// scan reads a complete reply and calls each with every message.
func (r *raw) scan(ctx context.Context, req *rowraftv1.ScanRequest, each func(*rowraftv1.ScanReply)) error {
	stream, err := r.stub.Scan(ctx, req)
	for err == nil {
		var reply *rowraftv1.ScanReply
		if reply, err = stream.Recv(); err == nil {
			each(reply)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return rpc.FromStatus(err)
}

func TestBadScansAreRefused(t *testing.T) {
	r, _ := openRaw(t)
	good := func(change func(*rowraftv1.ScanRequest)) *rowraftv1.ScanRequest {
		req := &rowraftv1.ScanRequest{MapVersion: 1 << 30, Table: uint64(r.table.ID), Dtype: uint32(rowraft.Float32),
			LastSlot: rowraft.DefaultSlots - 1}
		change(req)
		return req
	}
	for _, tc := range []struct {
		name string
		req  *rowraftv1.ScanRequest
		want rowraft.Code
	}{
		{"unknown table", good(func(q *rowraftv1.ScanRequest) { q.Table = 1 }), rowraft.CodeTableNotFound},
		{"unknown dtype", good(func(q *rowraftv1.ScanRequest) { q.Dtype = 1 + 256 }), rowraft.CodeInvalidArgument},
		{"slots that do not exist", good(func(q *rowraftv1.ScanRequest) { q.LastSlot++ }), rowraft.CodeInvalidArgument},
		{"slots backwards", good(func(q *rowraftv1.ScanRequest) { q.FirstSlot, q.LastSlot = 9, 8 }),
			rowraft.CodeInvalidArgument},
		{"unknown shard", good(func(q *rowraftv1.ScanRequest) { q.Shard = 1 }), rowraft.CodeInvalidArgument},
		{"stale map", good(func(q *rowraftv1.ScanRequest) { q.MapVersion = 0 }), rowraft.CodeWrongShard},
		{"a later epoch", good(func(q *rowraftv1.ScanRequest) { q.TableEpoch = 9 }), rowraft.CodeStarting},
		{"an index that is not there yet", good(func(q *rowraftv1.ScanRequest) { q.MinIndex = 1 << 40 }),
			rowraft.CodeTooStale},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := r.scan(testutil.Context(t), tc.req, func(reply *rowraftv1.ScanReply) { t.Errorf("a message: %v", reply) })
			if rowraft.CodeOf(err) != tc.want {
				t.Fatalf("got %v (%v), want %v", rowraft.CodeOf(err), err, tc.want)
			}
		})
	}
	rows, next := 0, uint32(0)
	err := r.scan(testutil.Context(t), good(func(*rowraftv1.ScanRequest) {}), func(reply *rowraftv1.ScanReply) {
		next = reply.NextSlot
		for payload := reply.Payload; len(payload) > 0; {
			seg, _, rest, err := wire.ParseSegment(payload)
			if err != nil {
				t.Fatal(err)
			}
			rows += seg.N
			payload = rest
		}
	})
	if err != nil || rows != 2 || next != rowraft.DefaultSlots {
		t.Errorf("a good scan: %d rows up to slot %d, %v", rows, next, err)
	}
}
