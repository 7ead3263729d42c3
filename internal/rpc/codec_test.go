package rpc

import (
	"bytes"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func hotMessages() []proto.Message {
	payload := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 700)
	id := []byte("0123456789abcdef")
	pull := &rowraftv1.PullRequest{MapVersion: 1 << 40, Shard: 255, Mode: rowraftv1.ReadMode_READ_MODE_LINEARIZABLE,
		TableEpoch: 3, MinIndex: 9, Payload: payload, Presence: true, MaxAgeNs: 1 << 33, MaxLag: 77}
	push := &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_CLOCKED, MapVersion: 7, Shard: 1, TableEpoch: 2,
		ClientId: id, Incarnation: 8, Seq: 1<<64 - 1, Floor: 4, Payload: payload}
	reply := &rowraftv1.PullReply{TableEpoch: 1, AppliedIndex: 1 << 50, Payload: payload, AgeNs: 1 << 31, Lag: 5}
	return []proto.Message{
		pull, push, reply,
		&rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_ASSIGN, Shard: 3, ClientId: id, Seq: 5, Payload: payload[:8]},
		&rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_DELETE, MapVersion: 2, Shard: 3, TableEpoch: 1, ClientId: id,
			Incarnation: 4, Seq: 5, Floor: 4, Payload: payload[:8]},
		&rowraftv1.PullRequest{}, &rowraftv1.PullReply{}, &rowraftv1.WriteRequest{},
		&rowraftv1.HelloRequest{ClusterId: "c"},
		&rowraftv1.ScanReply{TableEpoch: 2, AppliedIndex: 9, Payload: payload, NextSlot: 4096, NextKey: 1<<64 - 1},
		&rowraftv1.ScanReply{}, &rowraftv1.ScanReply{NextSlot: 1},
		&rowraftv1.PullManyRequest{Number: 7, TimeoutNs: 1 << 40,
			Batches: []*rowraftv1.PullRequest{pull, {}, {Shard: 2, Payload: payload[:3000]}}},
		&rowraftv1.WriteManyRequest{Batches: []*rowraftv1.WriteRequest{push, {Shard: 7}}},
		&rowraftv1.PullManyRequest{}, &rowraftv1.WriteManyRequest{}, &rowraftv1.PullManyReply{},
		&rowraftv1.PullManyReply{Number: 7, Answers: []*rowraftv1.PullReply{reply, {}, {Batch: 2, Payload: payload[:3000]}}},
		&rowraftv1.PullReply{TableEpoch: 1, AppliedIndex: 4, Payload: payload, Batch: 63},
		&rowraftv1.PullReply{Batch: 3, Error: &rowraftv1.ErrorDetail{Code: 5, Message: "shard 3", Leader: "n2", Term: 9}},
	}
}

// TestCountedRepliesAreTaken: a counted reply has the same bytes as an uncounted one, and calls Taken once: when
// its buffer is freed, or at once if it will not be freed.
func TestCountedRepliesAreTaken(t *testing.T) {
	for _, bytes := range []int{0, 16, 5000} {
		reply := func() *rowraftv1.PullReply {
			return &rowraftv1.PullReply{TableEpoch: 1, AppliedIndex: 9, Payload: Pool.Bytes(bytes)[:bytes]}
		}
		plain, err := Codec.Marshal(reply())
		if err != nil {
			t.Fatal(err)
		}
		want, taken := plain.Materialize(), 0
		got, err := Codec.Marshal(&Counted{Reply: reply(), Taken: func() { taken++ }})
		if err != nil || string(got.Materialize()) != string(want) {
			t.Errorf("%d bytes: not the same as without counting (%v)", bytes, err)
		}
		if bytes == 5000 && taken != 0 {
			t.Errorf("%d bytes: taken while the transport has it", bytes)
		}
		got.Free()
		if taken != 1 {
			t.Errorf("%d bytes: taken %d times, want once", bytes, taken)
		}
	}
}

// TestAnswersTravelTogether: protobuf reads a list of counted replies as a PullManyReply, and each is taken once.
func TestAnswersTravelTogether(t *testing.T) {
	taken := make([]int, 4)
	var answers []Counted
	want := &rowraftv1.PullManyReply{Number: 300}
	for i, bytes := range []int{0, 16, 5000, 3000} {
		reply := &rowraftv1.PullReply{Batch: uint32(i), AppliedIndex: 9, Payload: Pool.Bytes(bytes)[:bytes]}
		for j := range reply.Payload {
			reply.Payload[j] = byte(i + j)
		}
		want.Answers = append(want.Answers, proto.CloneOf(reply))
		c := Counted{Reply: reply}
		if i != 3 {
			c.Taken = func() { taken[i]++ }
		}
		answers = append(answers, c)
	}
	sent, err := Codec.Marshal(&Answers{Number: 300, Answers: answers})
	if err != nil {
		t.Fatal(err)
	}
	got := &rowraftv1.PullManyReply{}
	if err := proto.Unmarshal(sent.Materialize(), got); err != nil || !proto.Equal(got, want) {
		t.Errorf("protobuf reads %v (%v), want %v", got, err, want)
	}
	if taken[2] != 0 {
		t.Error("taken while the transport has it")
	}
	sent.Free()
	if !slices.Equal(taken, []int{1, 1, 1, 0}) {
		t.Errorf("taken %v times, want once each", taken)
	}
}

// TestCountedRepliesAreForgotten: gRPC drops the reply of a call that ends at the same time; Taken is called
// when the garbage collector has collected the reply.
func TestCountedRepliesAreForgotten(t *testing.T) {
	taken := make(chan struct{}, 1)
	if _, err := Codec.Marshal(&Counted{Reply: &rowraftv1.PullReply{Payload: Pool.Bytes(5000)},
		Taken: func() { taken <- struct{}{} }}); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; {
		runtime.GC()
		select {
		case <-taken:
			return
		case <-tick.C:
			if time.Now().After(deadline) {
				t.Fatal("a collected reply counts as held")
			}
		}
	}
}

// TestCodecSpeaksProtobuf compares both directions with the protobuf library, with messages in one buffer
// and in small buffers.
func TestCodecSpeaksProtobuf(t *testing.T) {
	for _, want := range hotMessages() {
		ours, err := Codec.Marshal(want)
		if err != nil {
			t.Fatalf("Marshal(%T): %v", want, err)
		}
		got := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(ours.Materialize(), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%T: protobuf reads %v (%v), want %v", want, got, err, want)
		}
		theirs, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, 7, 1 << 20} {
			var slice mem.BufferSlice
			for at := 0; at < len(theirs); at += size {
				slice = append(slice, mem.SliceBuffer(theirs[at:min(at+size, len(theirs))]))
			}
			got := want.ProtoReflect().New().Interface()
			if err := Codec.Unmarshal(slice, got); err != nil || !proto.Equal(got, want) {
				t.Errorf("%T in buffers of %d: read %v (%v), want %v", want, size, got, err, want)
			}
		}
	}
}

// TestCodecRefusesBrokenMessages cuts every message at every byte: no panic, and an error unless the rest
// is a valid message.
func TestCodecRefusesBrokenMessages(t *testing.T) {
	for _, m := range hotMessages() {
		whole, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for n := range whole {
			got, ref := m.ProtoReflect().New().Interface(), m.ProtoReflect().New().Interface()
			errOurs := Codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(whole[:n])}, got)
			errRef := proto.Unmarshal(whole[:n], ref)
			if (errOurs == nil) != (errRef == nil) {
				t.Fatalf("%T cut at %d of %d: our error %v, protobuf's %v", m, n, len(whole), errOurs, errRef)
			}
		}
	}
}

// outOfLine returns one message of each type whose payload travels out of line, with every field set.
func outOfLine() []proto.Message {
	all := []proto.Message{
		new(rowraftv1.PullRequest), new(rowraftv1.WriteRequest), new(rowraftv1.PullReply), new(rowraftv1.ScanReply),
		new(rowraftv1.PullManyRequest), new(rowraftv1.WriteManyRequest), new(rowraftv1.PullManyReply),
	}
	for _, m := range all {
		fill(m.ProtoReflect())
	}
	return all
}

// fill sets every field that m has, also the fields that are added to it later.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList() && f.Message() != nil:
			l := m.Mutable(f).List()
			for range 2 {
				e := l.NewElement()
				fill(e.Message())
				l.Append(e)
			}
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		case f.Kind() == protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes(bytes.Repeat([]byte{byte(i + 1)}, 2000)))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("text"))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(1))
		case f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(1<<31+7))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(1<<63+9))
		default:
			panic(f.FullName() + " has a kind that fill does not know: add it")
		}
	}
}

// TestCodecCarriesEveryField: no field that a message has, now or later, is dropped.
func TestCodecCarriesEveryField(t *testing.T) {
	for _, want := range outOfLine() {
		sent, err := Codec.Marshal(proto.Clone(want))
		if err != nil {
			t.Fatal(err)
		}
		read, got := want.ProtoReflect().New().Interface(), want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(sent.Materialize(), read); err != nil || !proto.Equal(read, want) {
			t.Errorf("%T is sent as %v (%v), want %v", want, read, err, want)
		}
		if err := Codec.Unmarshal(sent, got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%T is read as %v (%v), want %v", want, got, err, want)
		}
	}
}

// TestCodecKeepsFieldsOfALaterVersion: a server that passes on a message keeps the fields that only a later binary
// knows. The later binary's messages are dynamic: each type has one more field.
func TestCodecKeepsFieldsOfALaterVersion(t *testing.T) {
	file := protodesc.ToFileDescriptorProto(rowraftv1.File_rowraft_v1_table_proto)
	for _, m := range file.MessageType {
		m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
			Name: proto.String("later"), JsonName: proto.String("later"), Number: proto.Int32(1000),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			Type:  descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
		})
	}
	later, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range outOfLine() {
		want := dynamicpb.NewMessage(later.Messages().ByName(m.ProtoReflect().Descriptor().Name()))
		fill(want)
		raw, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		proto.Reset(m)
		if err := Codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, m); err != nil {
			t.Fatal(err)
		}
		sent, err := Codec.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := dynamicpb.NewMessage(want.Descriptor())
		if err := proto.Unmarshal(sent.Materialize(), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%T of a later binary is passed on as %v (%v), want %v", m, got, err, want)
		}
	}
}
