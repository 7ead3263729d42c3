package rpc

import (
	"fmt"
	"io"
	"runtime"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Codec is the protobuf codec with a zero-copy path for the hot messages. It
// writes and reads the protobuf wire format.
var Codec encoding.CodecV2 = codec{std: encoding.GetCodecV2("proto")}

type codec struct{ std encoding.CodecV2 }

func (codec) Name() string { return "proto" }

// Counted is a reply whose payload memory is counted. The transport calls Taken when it has written the
// payload or dropped it, possibly more than once, or late: when a call is over or a connection breaks, gRPC
// drops its buffers without freeing them, and the garbage collector collects them.
type Counted struct {
	Reply *rowraftv1.PullReply
	Taken func()
}

// countedPool frees a payload and reports that.
type countedPool struct {
	*BufferPool
	taken func()
	lost  runtime.Cleanup // reports a payload that was collected without being freed
}

func (p *countedPool) Put(b *[]byte) {
	p.lost.Stop()
	p.BufferPool.Put(b)
	p.taken()
}

// counted returns the buffer of a payload that is counted. Package mem never frees very small payloads:
// they are reported at once.
func counted(payload *[]byte, taken func()) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(*payload)) {
		taken()
		return mem.SliceBuffer(*payload)
	}
	p := &countedPool{BufferPool: Pool, taken: taken}
	p.lost = runtime.AddCleanup(p, func(taken func()) { taken() }, taken)
	return mem.NewBuffer(payload, p)
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Counted:
		return withPayload(pullReplyHead(nil, m.Reply), 3, counted(&m.Reply.Payload, m.Taken)), nil
	case *rowraftv1.PullRequest:
		return pullRequest(m), nil
	case *rowraftv1.PullReply:
		return withPayload(pullReplyHead(nil, m), 3, mem.NewBuffer(&m.Payload, Pool)), nil
	case *rowraftv1.ScanReply:
		return scanReply(m), nil
	case *rowraftv1.WriteRequest:
		return writeRequest(m), nil
	case *rowraftv1.PullManyRequest:
		return listed(m.Batches, pullRequest), nil
	case *rowraftv1.WriteManyRequest:
		return listed(m.Batches, writeRequest), nil
	}
	return c.std.Marshal(v)
}

// listed encodes a message whose only field, number 1, is a list of messages.
func listed[T any](list []*T, encode func(*T) mem.BufferSlice) (out mem.BufferSlice) {
	for _, m := range list {
		b := encode(m)
		head := protowire.AppendTag(nil, 1, protowire.BytesType)
		out = append(out, mem.SliceBuffer(protowire.AppendVarint(head, uint64(b.Len()))))
		out = append(out, b...)
	}
	return out
}

func pullRequest(m *rowraftv1.PullRequest) mem.BufferSlice {
	return withPayload(pullRequestHead(nil, m), 6, mem.SliceBuffer(m.Payload))
}

func writeRequest(m *rowraftv1.WriteRequest) mem.BufferSlice {
	return withPayload(writeRequestHead(m), 8, mem.SliceBuffer(m.Payload))
}

// withPayload appends the payload field to a message. It does not copy the payload.
func withPayload(head []byte, num protowire.Number, payload mem.Buffer) mem.BufferSlice {
	if payload.Len() == 0 {
		payload.Free()
		return mem.BufferSlice{mem.SliceBuffer(head)}
	}
	head = protowire.AppendTag(head, num, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(payload.Len()))
	return mem.BufferSlice{mem.SliceBuffer(head), payload}
}

// scanReply has fields after its payload, because fields are in the order of their numbers.
func scanReply(m *rowraftv1.ScanReply) mem.BufferSlice {
	out := withPayload(appendUint(appendUint(nil, 1, m.GetTableEpoch()), 2, m.GetAppliedIndex()), 3,
		mem.NewBuffer(&m.Payload, Pool))
	return append(out, mem.SliceBuffer(appendUint(appendUint(nil, 4, uint64(m.GetNextSlot())), 5, m.GetNextKey())))
}

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func pullRequestHead(b []byte, m *rowraftv1.PullRequest) []byte {
	b = appendUint(b, 1, m.GetMapVersion())
	b = appendUint(b, 2, uint64(m.GetShard()))
	b = appendUint(b, 3, uint64(m.GetMode()))
	b = appendUint(b, 4, m.GetTableEpoch())
	b = appendUint(b, 5, m.GetMinIndex())
	b = appendUint(b, 7, protowire.EncodeBool(m.GetPresence()))
	b = appendUint(b, 8, m.GetMaxAgeNs())
	return appendUint(b, 9, m.GetMaxLag())
}

func pullReplyHead(b []byte, m *rowraftv1.PullReply) []byte {
	b = appendUint(appendUint(b, 1, m.GetTableEpoch()), 2, m.GetAppliedIndex())
	b = appendUint(appendUint(b, 4, m.GetAgeNs()), 5, m.GetLag())
	b = appendUint(b, 6, uint64(m.GetBatch()))
	if m.Error == nil {
		return b
	}
	detail, _ := proto.Marshal(m.Error) // fails only for text that is not UTF-8; see Detail
	return protowire.AppendBytes(protowire.AppendTag(b, 7, protowire.BytesType), detail)
}

func writeRequestHead(m *rowraftv1.WriteRequest) []byte {
	b := appendUint(nil, 1, m.GetMapVersion())
	b = appendUint(b, 2, uint64(m.GetShard()))
	b = appendUint(b, 3, m.GetTableEpoch())
	if id := m.GetClientId(); len(id) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), id)
	}
	b = appendUint(b, 5, m.GetIncarnation())
	b = appendUint(b, 6, m.GetSeq())
	b = appendUint(b, 7, m.GetFloor())
	return appendUint(b, 9, uint64(m.GetOp()))
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	var fields func(*reader, protowire.Number, protowire.Type) (bool, error)
	switch m := v.(type) {
	case *rowraftv1.PullRequest:
		fields = pullRequestField(m)
	case *rowraftv1.PullReply:
		fields = pullReplyField(m)
	case *rowraftv1.ScanReply:
		fields = scanReplyField(m)
	case *rowraftv1.WriteRequest:
		fields = writeRequestField(m)
	case *rowraftv1.PullManyRequest:
		fields = listField(&m.Batches, pullRequestField)
	case *rowraftv1.WriteManyRequest:
		fields = listField(&m.Batches, writeRequestField)
	default:
		return c.std.Unmarshal(data, v)
	}
	r := &reader{r: data.Reader(), left: data.Len()}
	defer r.r.Close()
	return r.message(fields)
}

// reader decodes the protobuf wire format from the buffers of a message.
type reader struct {
	r    *mem.Reader
	left int // bytes left of the message
}

// message reads fields until the message ends. fields handles one field and reports whether it knows it;
// message skips unknown fields.
func (r *reader) message(fields func(*reader, protowire.Number, protowire.Type) (bool, error)) error {
	for r.left > 0 {
		tag, err := r.varint()
		if err != nil {
			return err
		}
		num, typ := protowire.DecodeTag(tag)
		if num < 1 || num > protowire.MaxValidNumber {
			return fmt.Errorf("protobuf: impossible field number in tag %#x", tag)
		}
		known, err := fields(r, num, typ)
		if err != nil {
			return fmt.Errorf("protobuf field %d: %w", num, err)
		}
		if !known {
			if err := r.skip(typ); err != nil {
				return fmt.Errorf("protobuf field %d: %w", num, err)
			}
		}
	}
	return nil
}

func (r *reader) varint() (uint64, error) {
	var v uint64
	for shift := 0; shift < 70; shift += 7 {
		if r.left == 0 {
			return 0, io.ErrUnexpectedEOF
		}
		b, err := r.r.ReadByte()
		if err != nil {
			return 0, err
		}
		r.left--
		if shift == 63 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, fmt.Errorf("varint of more than 64 bits")
}

func (r *reader) length() (int, error) {
	n, err := r.varint()
	if err != nil {
		return 0, err
	}
	if n > uint64(r.left) {
		return 0, io.ErrUnexpectedEOF
	}
	return int(n), nil
}

// bytes reads a length-delimited field into pooled memory.
func (r *reader) bytes() ([]byte, error) {
	n, err := r.length()
	if err != nil {
		return nil, err
	}
	b := Pool.Bytes(n)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return nil, err
	}
	r.left -= n
	return b, nil
}

func (r *reader) skip(typ protowire.Type) error {
	n := 0
	switch typ {
	case protowire.VarintType:
		_, err := r.varint()
		return err
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	case protowire.BytesType:
		var err error
		if n, err = r.length(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("wire type %d is not supported", typ)
	}
	if n > r.left {
		return io.ErrUnexpectedEOF
	}
	if _, err := r.r.Discard(n); err != nil {
		return err
	}
	r.left -= n
	return nil
}

// number is the integer type of a field.
type number interface{ ~uint64 | ~uint32 | ~int32 }

func setNumber[T number](r *reader, typ protowire.Type, dst *T) (bool, error) {
	if typ != protowire.VarintType {
		return false, nil
	}
	v, err := r.varint()
	*dst = T(v)
	return true, err
}

func setBytes(r *reader, typ protowire.Type, dst *[]byte) (bool, error) {
	if typ != protowire.BytesType {
		return false, nil
	}
	if len(*dst) > 0 { // the last value wins, as in protobuf
		Pool.Release(*dst)
	}
	b, err := r.bytes()
	*dst = b
	return true, err
}

// setDetail reads an ErrorDetail. As in protobuf, a second one is merged into the first.
func setDetail(r *reader, typ protowire.Type, dst **rowraftv1.ErrorDetail) (bool, error) {
	if typ != protowire.BytesType {
		return false, nil
	}
	b, err := r.bytes()
	if err != nil {
		return true, err
	}
	if *dst == nil {
		*dst = new(rowraftv1.ErrorDetail)
	}
	err = proto.UnmarshalOptions{Merge: true}.Unmarshal(b, *dst)
	Pool.Release(b)
	return true, err
}

// listField reads the messages of a list, which is field 1.
func listField[T any](dst *[]*T, fields func(*T) func(*reader, protowire.Number, protowire.Type) (bool, error),
) func(*reader, protowire.Number, protowire.Type) (bool, error) {
	return func(r *reader, num protowire.Number, typ protowire.Type) (bool, error) {
		if num != 1 || typ != protowire.BytesType {
			return false, nil
		}
		if len(*dst) == MaxBatches {
			return true, fmt.Errorf("more than %d batches in one request", MaxBatches)
		}
		n, err := r.length()
		if err != nil {
			return true, err
		}
		m, in := new(T), reader{r: r.r, left: n}
		if err := in.message(fields(m)); err != nil {
			return true, err
		}
		r.left -= n
		*dst = append(*dst, m)
		return true, nil
	}
}

func pullRequestField(m *rowraftv1.PullRequest) func(*reader, protowire.Number, protowire.Type) (bool, error) {
	return func(r *reader, num protowire.Number, typ protowire.Type) (bool, error) {
		switch num {
		case 1:
			return setNumber(r, typ, &m.MapVersion)
		case 2:
			return setNumber(r, typ, &m.Shard)
		case 3:
			return setNumber(r, typ, &m.Mode)
		case 4:
			return setNumber(r, typ, &m.TableEpoch)
		case 5:
			return setNumber(r, typ, &m.MinIndex)
		case 6:
			return setBytes(r, typ, &m.Payload)
		case 7:
			var v uint64
			known, err := setNumber(r, typ, &v)
			m.Presence = v != 0
			return known, err
		case 8:
			return setNumber(r, typ, &m.MaxAgeNs)
		case 9:
			return setNumber(r, typ, &m.MaxLag)
		}
		return false, nil
	}
}

func pullReplyField(m *rowraftv1.PullReply) func(*reader, protowire.Number, protowire.Type) (bool, error) {
	return func(r *reader, num protowire.Number, typ protowire.Type) (bool, error) {
		switch num {
		case 1:
			return setNumber(r, typ, &m.TableEpoch)
		case 2:
			return setNumber(r, typ, &m.AppliedIndex)
		case 3:
			return setBytes(r, typ, &m.Payload)
		case 4:
			return setNumber(r, typ, &m.AgeNs)
		case 5:
			return setNumber(r, typ, &m.Lag)
		case 6:
			return setNumber(r, typ, &m.Batch)
		case 7:
			return setDetail(r, typ, &m.Error)
		}
		return false, nil
	}
}

func scanReplyField(m *rowraftv1.ScanReply) func(*reader, protowire.Number, protowire.Type) (bool, error) {
	return func(r *reader, num protowire.Number, typ protowire.Type) (bool, error) {
		switch num {
		case 1:
			return setNumber(r, typ, &m.TableEpoch)
		case 2:
			return setNumber(r, typ, &m.AppliedIndex)
		case 3:
			return setBytes(r, typ, &m.Payload)
		case 4:
			return setNumber(r, typ, &m.NextSlot)
		case 5:
			return setNumber(r, typ, &m.NextKey)
		}
		return false, nil
	}
}

func writeRequestField(m *rowraftv1.WriteRequest) func(*reader, protowire.Number, protowire.Type) (bool, error) {
	return func(r *reader, num protowire.Number, typ protowire.Type) (bool, error) {
		switch num {
		case 1:
			return setNumber(r, typ, &m.MapVersion)
		case 2:
			return setNumber(r, typ, &m.Shard)
		case 3:
			return setNumber(r, typ, &m.TableEpoch)
		case 4:
			return setBytes(r, typ, &m.ClientId)
		case 5:
			return setNumber(r, typ, &m.Incarnation)
		case 6:
			return setNumber(r, typ, &m.Seq)
		case 7:
			return setNumber(r, typ, &m.Floor)
		case 8:
			return setBytes(r, typ, &m.Payload)
		case 9:
			return setNumber(r, typ, &m.Op)
		}
		return false, nil
	}
}
