package rpc

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/allocs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// FuzzCodecUnmarshal compares the codec with the protobuf library. The library accepts what the codec
// accepts, with the same result. What only the library accepts has a group or a field of another wire type.
// Allocations are proportional to the input.
func FuzzCodecUnmarshal(f *testing.F) {
	for _, m := range hotMessages() {
		b, _ := proto.Marshal(m)
		f.Add(b[:min(len(b), 200)], uint8(7))
		f.Add(b[:len(b)-min(len(b), 5600)], uint8(0))
	}
	f.Add(bytes.Repeat([]byte{0xff}, 12), uint8(1))
	f.Add([]byte{0x32, 0xff, 0xff, 0xff, 0xff, 0x0f, 1}, uint8(3)) // a payload of 4 GiB
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		for _, m := range []proto.Message{
			new(rowraftv1.PullRequest), new(rowraftv1.WriteRequest), new(rowraftv1.PullReply),
			new(rowraftv1.HelloRequest), new(rowraftv1.ScanReply),
			new(rowraftv1.PullManyRequest), new(rowraftv1.WriteManyRequest), new(rowraftv1.PullManyReply),
		} {
			ref := m.ProtoReflect().New().Interface()
			at := min(int(cut), len(b)) // in two buffers, as the network may deliver it
			in := mem.BufferSlice{mem.SliceBuffer(b[:at]), mem.SliceBuffer(b[at:])}
			var err error
			if n := allocs.Bytes(func() { err = Codec.Unmarshal(in, m) }); n > 1<<20+64*uint64(len(b)) {
				t.Errorf("%T: %d bytes made it allocate %d", m, len(b), n)
			}
			errRef := proto.Unmarshal(b, ref)
			if err == nil && errRef != nil {
				t.Errorf("%T accepts %x, protobuf says %v", m, b, errRef)
			}
			if err != nil && errRef == nil && !hasGroup(b) && !batchHasGroup(ref, b) && len(batches(ref)) <= MaxBatches {
				t.Errorf("%T refuses %x: %v", m, b, err)
			}
			if err != nil || errRef != nil {
				continue
			}
			for _, m := range []proto.Message{m, ref} { // the codec writes the varints of unknown fields in their shortest form
				m.ProtoReflect().SetUnknown(nil)
				for _, b := range batches(m) {
					b.ProtoReflect().SetUnknown(nil)
				}
			}
			if !proto.Equal(m, ref) {
				t.Errorf("%T reads %x as %v, protobuf as %v", m, b, m, ref)
			}
		}
	})
}

// batches returns the batches of a request, or of a reply.
func batches(m proto.Message) (out []proto.Message) {
	switch m := m.(type) {
	case *rowraftv1.PullManyRequest:
		for _, b := range m.Batches {
			out = append(out, b)
		}
	case *rowraftv1.WriteManyRequest:
		for _, b := range m.Batches {
			out = append(out, b)
		}
	case *rowraftv1.PullManyReply:
		for _, b := range m.Answers {
			out = append(out, b)
		}
	}
	return out
}

// batchHasGroup is hasGroup for the batches of the request m, which b encodes.
func batchHasGroup(m proto.Message, b []byte) bool {
	for len(batches(m)) > 0 && len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		end := n + protowire.ConsumeFieldValue(num, typ, b[n:])
		if batch, _ := protowire.ConsumeBytes(b[n:end]); num == 1 && typ == protowire.BytesType && hasGroup(batch) {
			return true
		}
		b = b[end:]
	}
	return false
}

// hasGroup reports whether a message has a group, or a field that cannot be skipped.
func hasGroup(b []byte) bool {
	for len(b) > 0 {
		_, typ, n := protowire.ConsumeTag(b)
		if n < 0 || typ == protowire.StartGroupType || typ == protowire.EndGroupType {
			return true
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(1, typ, b)
		if n < 0 {
			return true
		}
		b = b[n:]
	}
	return false
}

// FuzzErrorDetail: a received error has the code with which it was sent, and is forwarded unchanged.
func FuzzErrorDetail(f *testing.F) {
	for _, err := range []error{
		&rowraft.NotLeaderError{Shard: 3, Term: 9, Leader: "n2"},
		&rowraft.WrongShardError{Shard: 3, Have: 4, Want: 5},
		&rowraft.TooStaleError{Shard: 3, Applied: 7, Wanted: 8},
		&rowraft.TooStaleError{Shard: 3, Applied: 7, Age: 11 * time.Second, MaxAge: 10 * time.Second, Lag: 4, MaxLag: 9},
		&rowraft.OverloadedError{What: "the disk", RetryAfter: 5e9},
		rowraft.Errorf(rowraft.CodeCorrupt, "a bit"),
		errors.New("foreign"),
	} {
		b, merr := proto.Marshal(Detail(err))
		if merr != nil {
			f.Fatal(merr)
		}
		f.Add(b)
	}
	f.Add([]byte{0x08, 0xff, 0xff, 0xff, 0xff, 0x0f}) // a code that does not exist
	hostile, _ := proto.Marshal(&rowraftv1.ErrorDetail{Code: uint32(rowraft.CodeOverloaded), RetryAfterNs: 1 << 63})
	f.Add(hostile)
	f.Fuzz(func(t *testing.T, b []byte) {
		var d rowraftv1.ErrorDetail
		if proto.Unmarshal(b, &d) != nil {
			return
		}
		err := FromDetail(&d)
		got := rowraft.CodeOf(err)
		if _, known := grpcCodes[got]; got != rowraft.CodeUnknown && (uint32(got) != d.Code || !known) {
			t.Errorf("code %d arrives as %d", d.Code, got)
		}
		if o, ok := errors.AsType[*rowraft.OverloadedError](err); ok && (o.RetryAfter < 0 || o.RetryAfter > maxRetryAfter) {
			t.Errorf("a client would wait %v", o.RetryAfter)
		}
		if again := FromDetail(Detail(err)); rowraft.CodeOf(again) != rowraft.CodeOf(err) || again.Error() != err.Error() {
			t.Errorf("%v is sent on as %v", err, again)
		}
		s, serr := status.New(codes.Internal, "x").WithDetails(&d)
		if serr != nil {
			return
		}
		if got := FromStatus(s.Err()); rowraft.CodeOf(got) != rowraft.CodeOf(err) {
			t.Errorf("%v arrives in a status as %v", err, got)
		}
	})
}

// FuzzMapFromProto: an accepted map places every slot on a shard that it has, and is forwarded unchanged.
func FuzzMapFromProto(f *testing.F) {
	m := clustermap.Map{Cluster: "c", Version: 5, SlotsVersion: 3, Epoch: 1,
		Nodes:  []clustermap.Node{{ID: "n1", Name: "a", Addr: "h:1", PeerAddr: "h:2", Scheduler: true}},
		Shards: []clustermap.Shard{{ID: 0, Replicas: []clustermap.Replica{{ID: "r", Node: "n1"}}}, {ID: 1}},
		Tables: []rowraft.Schema{{ID: 7, Name: "t", Kind: rowraft.Sparse, Dim: 4}},
	}
	good, err := clustermap.New(m, nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, change := range []func(*rowraftv1.Map){
		func(*rowraftv1.Map) {},
		func(p *rowraftv1.Map) { p.Slots = nil },
		func(p *rowraftv1.Map) { p.Slots = p.Slots[1:] },
		func(p *rowraftv1.Map) { p.Slots[1].Shard = 200 },
		func(p *rowraftv1.Map) { p.Slots[1].Shard = clustermap.MaxShards },
		func(p *rowraftv1.Map) { p.Slots[1].Count += 4096 },
		func(p *rowraftv1.Map) { p.Slots[0].Count = 0 },
		func(p *rowraftv1.Map) { p.Slots[0].Count = 1<<32 - 1 },
		func(p *rowraftv1.Map) { p.Shards, p.Slots = nil, nil },
		func(p *rowraftv1.Map) { p.Shards[1].Id = 1 << 31 },
		func(p *rowraftv1.Map) { p.Tables[0].Kind, p.Tables[0].Dim = 1<<20, 1<<31 },
	} {
		p := MapToProto(good)
		change(p)
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p rowraftv1.Map
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		m, err := MapFromProto(&p)
		if err != nil {
			if rowraft.CodeOf(err) == rowraft.CodeUnknown {
				t.Errorf("%v has no code", err)
			}
			return
		}
		for slot := range rowraft.Slot(m.SlotCount()) {
			if s := m.ShardOf(slot); len(m.Shards) > 0 && int(s) >= len(m.Shards) {
				t.Fatalf("slot %d is on shard %d of %d", slot, s, len(m.Shards))
			}
		}
		again, err := MapFromProto(MapToProto(m))
		if err != nil || !proto.Equal(MapToProto(again), MapToProto(m)) {
			t.Errorf("%v travels on as %v, %v", m, again, err)
		}
	})
}

// FuzzBatchSize: parsing and encoding agree, and nothing else is accepted.
func FuzzBatchSize(f *testing.F) {
	for _, said := range []string{"3/4712", "3/4712/delete", "0/0", "/", "1/2/3", "4294967296/1", "1/-1"} {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said string) {
		p, ok := parseBatchSize(said)
		if !ok {
			return
		}
		if p.Bytes < 0 || p.Bytes > MaxRequestBytes {
			t.Errorf("%q is a part of %d bytes", said, p.Bytes)
		}
		if again, ok := parseBatchSize(p.String()); !ok || again != p {
			t.Errorf("%q is read as %+v, and that as %+v, %v", said, p, again, ok)
		}
	})
}
