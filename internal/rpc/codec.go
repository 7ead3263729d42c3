package rpc

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Codec is the protobuf codec with a zero-copy path for payloads. It writes and reads the protobuf wire format.
var Codec encoding.CodecV2 = codec{std: encoding.GetCodecV2("proto")}

type codec struct{ std encoding.CodecV2 }

func (codec) Name() string { return "proto" }

// Counted is a reply whose payload memory is counted. The transport calls Taken when it has written the
// payload or dropped it, possibly more than once, or late: when a call is over or a connection breaks, gRPC
// drops its buffers without freeing them, and the garbage collector collects them. Taken may be nil.
type Counted struct {
	Reply *rowraftv1.PullReply
	Taken func()
}

func (c *Counted) payload() mem.Buffer {
	if c.Taken == nil {
		return mem.NewBuffer(&c.Reply.Payload, Pool)
	}
	return counted(&c.Reply.Payload, c.Taken)
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

// The rule of this codec: the payload of a message travels out of line. Payload and batches are the only fields
// that the codec knows; package proto writes and reads all others, so a field that is added later travels too.
var (
	pullRequests = &carrier[rowraftv1.PullRequest, *rowraftv1.PullRequest]{num: 6,
		payload: func(m *rowraftv1.PullRequest) *[]byte { return &m.Payload }}
	writeRequests = &carrier[rowraftv1.WriteRequest, *rowraftv1.WriteRequest]{num: 8,
		payload: func(m *rowraftv1.WriteRequest) *[]byte { return &m.Payload }}
	pullReplies = &carrier[rowraftv1.PullReply, *rowraftv1.PullReply]{num: 3,
		payload: func(m *rowraftv1.PullReply) *[]byte { return &m.Payload }}
	scanReplies = &carrier[rowraftv1.ScanReply, *rowraftv1.ScanReply]{num: 3,
		payload: func(m *rowraftv1.ScanReply) *[]byte { return &m.Payload }}
	pullLists = &lister[rowraftv1.PullManyRequest, *rowraftv1.PullManyRequest, rowraftv1.PullRequest,
		*rowraftv1.PullRequest]{num: 1,
		of: pullRequests, batches: func(m *rowraftv1.PullManyRequest) *[]*rowraftv1.PullRequest { return &m.Batches }}
	answerLists = &lister[rowraftv1.PullManyReply, *rowraftv1.PullManyReply, rowraftv1.PullReply,
		*rowraftv1.PullReply]{num: 1,
		of: pullReplies, batches: func(m *rowraftv1.PullManyReply) *[]*rowraftv1.PullReply { return &m.Answers }}
	writeLists = &lister[rowraftv1.WriteManyRequest, *rowraftv1.WriteManyRequest, rowraftv1.WriteRequest,
		*rowraftv1.WriteRequest]{num: 1,
		of: writeRequests, batches: func(m *rowraftv1.WriteManyRequest) *[]*rowraftv1.WriteRequest { return &m.Batches }}
)

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Counted:
		return pullReplies.marshal(nil, m.Reply, m.payload())
	case *rowraftv1.PullReply:
		return pullReplies.marshal(nil, m, mem.NewBuffer(&m.Payload, Pool))
	case *Answers:
		return m.marshal()
	case *rowraftv1.ScanReply:
		return scanReplies.marshal(nil, m, mem.NewBuffer(&m.Payload, Pool))
	case *rowraftv1.PullRequest:
		return pullRequests.marshal(nil, m, mem.SliceBuffer(m.Payload))
	case *rowraftv1.WriteRequest:
		return writeRequests.marshal(nil, m, mem.SliceBuffer(m.Payload))
	case *rowraftv1.PullManyRequest:
		return pullLists.marshal(m)
	case *rowraftv1.WriteManyRequest:
		return writeLists.marshal(m)
	}
	return c.std.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r := &reader{left: data.Len()}
	read := func(own func(*reader, protowire.Number) (bool, error), m proto.Message) error {
		r.r = data.Reader()
		defer r.r.Close()
		return r.message(m, own)
	}
	switch m := v.(type) {
	case *rowraftv1.PullRequest:
		return read(pullRequests.field(m), m)
	case *rowraftv1.PullReply:
		return read(pullReplies.field(m), m)
	case *rowraftv1.ScanReply:
		return read(scanReplies.field(m), m)
	case *rowraftv1.WriteRequest:
		return read(writeRequests.field(m), m)
	case *rowraftv1.PullManyRequest:
		return read(pullLists.field(m), m)
	case *rowraftv1.PullManyReply:
		return read(answerLists.field(m), m)
	case *rowraftv1.WriteManyRequest:
		return read(writeLists.field(m), m)
	}
	return c.std.Unmarshal(data, v)
}

type message[T any] interface {
	*T
	proto.Message
}

// without appends m to b, except the field that clear clears. It leaves m unchanged, because another goroutine
// may send m too: it clears the field in a shallow copy, which is from copies.
func without[T any, M message[T]](b []byte, m M, copies *sync.Pool, clear func(M)) ([]byte, error) {
	c, _ := copies.Get().(M)
	if c == nil {
		c = new(T)
	}
	*c = *m
	clear(c)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, c)
	*c = *new(T)
	copies.Put(c)
	return b, err
}

// carrier is the rule for a message with a payload in field num.
type carrier[T any, M message[T]] struct {
	num     protowire.Number
	payload func(M) *[]byte
	copies  sync.Pool
}

// headBytes is the usual size of a message without its payload.
const headBytes = 80

// marshal appends m to the messages in out. It does not copy the payload, and frees it on an error.
func (c *carrier[T, M]) marshal(out mem.BufferSlice, m M, payload mem.Buffer) (mem.BufferSlice, error) {
	head, err := without(make([]byte, 0, headBytes), m, &c.copies, func(m M) { *c.payload(m) = nil })
	if err != nil || payload.Len() == 0 {
		payload.Free()
		return append(out, mem.SliceBuffer(head)), err
	}
	head = protowire.AppendTag(head, c.num, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(payload.Len()))
	return append(out, mem.SliceBuffer(head), payload), nil
}

// field returns a function that reads field num into m, and reports for any other field that it does not know it.
func (c *carrier[T, M]) field(m M) func(*reader, protowire.Number) (bool, error) {
	return func(r *reader, num protowire.Number) (bool, error) {
		if num != c.num {
			return false, nil
		}
		dst := c.payload(m)
		if len(*dst) > 0 { // the last value wins, as in protobuf
			Pool.Release(*dst)
		}
		var err error
		*dst, err = r.bytes()
		return true, err
	}
}

// lister is the rule for a message with a list of such messages in field num.
type lister[T any, M message[T], E any, EM message[E]] struct {
	num     protowire.Number
	of      *carrier[E, EM]
	batches func(M) *[]EM
	copies  sync.Pool
}

func (l *lister[T, M, E, EM]) marshal(m M) (out mem.BufferSlice, err error) {
	batches := *l.batches(m)
	out = make(mem.BufferSlice, 0, 1+3*len(batches))
	head, err := without(nil, m, &l.copies, func(m M) { *l.batches(m) = nil })
	if len(head) > 0 {
		out = append(out, mem.SliceBuffer(head))
	}
	for _, b := range batches {
		if err == nil {
			out, err = l.add(out, b, mem.SliceBuffer(*l.of.payload(b)))
		}
	}
	return out, err
}

// add appends b, an element of the list, to the messages in out.
func (l *lister[T, M, E, EM]) add(out mem.BufferSlice, b EM, payload mem.Buffer) (mem.BufferSlice, error) {
	at := len(out)
	out, err := l.of.marshal(append(out, nil), b, payload)
	prefix := protowire.AppendTag(nil, l.num, protowire.BytesType)
	out[at] = mem.SliceBuffer(protowire.AppendVarint(prefix, uint64(out[at+1:].Len())))
	return out, err
}

// Answers is a PullManyReply whose payloads are counted.
type Answers struct {
	Number  uint64
	Answers []Counted
}

// marshal returns the message. On an error it frees all payloads.
func (m *Answers) marshal() (out mem.BufferSlice, err error) {
	out = make(mem.BufferSlice, 0, 1+3*len(m.Answers))
	head, err := proto.Marshal(&rowraftv1.PullManyReply{Number: m.Number})
	if len(head) > 0 {
		out = append(out, mem.SliceBuffer(head))
	}
	for i := range m.Answers {
		a := &m.Answers[i]
		if err != nil {
			a.payload().Free()
			continue
		}
		out, err = answerLists.add(out, a.Reply, a.payload())
	}
	if err != nil {
		out.Free()
	}
	return out, err
}

func (l *lister[T, M, E, EM]) field(m M) func(*reader, protowire.Number) (bool, error) {
	return func(r *reader, num protowire.Number) (bool, error) {
		if num != l.num {
			return false, nil
		}
		dst := l.batches(m)
		if len(*dst) == MaxBatches {
			return true, fmt.Errorf("more than %d batches in one message", MaxBatches)
		}
		n, err := r.length()
		if err != nil {
			return true, err
		}
		b, in := EM(new(E)), reader{r: r.r, left: n}
		if err := in.message(b, l.of.field(b)); err != nil {
			return true, err
		}
		r.left -= n
		*dst = append(*dst, b)
		return true, nil
	}
}

// reader decodes the protobuf wire format from the buffers of a message.
type reader struct {
	r    *mem.Reader
	left int // bytes left of the message
}

// message reads m until the message ends. own reads the length-delimited fields that it knows; package proto
// reads the others.
func (r *reader) message(m proto.Message, own func(*reader, protowire.Number) (bool, error)) error {
	buf := Pool.Get(headBytes)
	defer Pool.Put(buf)
	rest := (*buf)[:0]
	for r.left > 0 {
		tag, err := r.varint()
		if err != nil {
			return err
		}
		num, typ := protowire.DecodeTag(tag)
		if num < 1 || num > protowire.MaxValidNumber {
			return fmt.Errorf("protobuf: impossible field number in tag %#x", tag)
		}
		known := false
		if typ == protowire.BytesType {
			known, err = own(r, num)
		}
		if !known && err == nil {
			rest, err = r.copy(protowire.AppendVarint(rest, tag), typ)
		}
		if err != nil {
			return fmt.Errorf("protobuf field %d: %w", num, err)
		}
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(rest, m)
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

// copy appends the value of a field to b.
func (r *reader) copy(b []byte, typ protowire.Type) ([]byte, error) {
	n := 0
	switch typ {
	case protowire.VarintType:
		v, err := r.varint()
		return protowire.AppendVarint(b, v), err
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	case protowire.BytesType:
		var err error
		if n, err = r.length(); err != nil {
			return b, err
		}
		b = protowire.AppendVarint(b, uint64(n))
	default:
		return b, fmt.Errorf("wire type %d is not supported", typ)
	}
	if n > r.left {
		return b, io.ErrUnexpectedEOF
	}
	at := len(b)
	b = slices.Grow(b, n)[:at+n]
	_, err := io.ReadFull(r.r, b[at:])
	r.left -= n
	return b, err
}
