package rpc

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// BenchmarkCodec encodes and decodes one message, whose payload stays where it is or comes from the pool.
func BenchmarkCodec(b *testing.B) {
	payload := func() []byte { return Pool.Bytes(64 << 10) }
	id := []byte("0123456789abcdef")
	push := &rowraftv1.WriteRequest{Op: 1, MapVersion: 7, Shard: 1, TableEpoch: 2, ClientId: id, Incarnation: 8,
		Seq: 1 << 40, Floor: 4, Payload: payload()}
	for _, m := range []proto.Message{
		push,
		&rowraftv1.PullRequest{MapVersion: 7, Shard: 1, Mode: 1, TableEpoch: 2, MinIndex: 1 << 30, Payload: payload()},
		&rowraftv1.PullReply{TableEpoch: 2, AppliedIndex: 1 << 30, Payload: payload(), Batch: 3},
		&rowraftv1.WriteManyRequest{Batches: []*rowraftv1.WriteRequest{push, push, push, push}},
	} {
		b.Run(fmt.Sprintf("marshal/%T", m), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, ok := m.(*rowraftv1.PullReply); ok {
					r.Payload = payload() // the transport frees it
				}
				out, err := Codec.Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
		b.Run(fmt.Sprintf("unmarshal/%T", m), func(b *testing.B) {
			if r, ok := m.(*rowraftv1.PullReply); ok {
				r.Payload = payload()
			}
			raw, err := proto.Marshal(m)
			if err != nil {
				b.Fatal(err)
			}
			in := mem.BufferSlice{mem.SliceBuffer(raw)}
			b.ReportAllocs()
			for b.Loop() {
				got := m.ProtoReflect().New().Interface()
				if err := Codec.Unmarshal(in, got); err != nil {
					b.Fatal(err)
				}
				switch got := got.(type) {
				case *rowraftv1.WriteRequest:
					Pool.Release(got.Payload)
				case *rowraftv1.PullRequest:
					Pool.Release(got.Payload)
				case *rowraftv1.PullReply:
					Pool.Release(got.Payload)
				case *rowraftv1.WriteManyRequest:
					for _, w := range got.Batches {
						Pool.Release(w.Payload)
					}
				}
			}
		})
	}
}
