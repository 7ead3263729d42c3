package nemesis

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// badRequest is a call that must be refused and change nothing.
type badRequest struct {
	name string
	call func(context.Context, rowraftv1.TableClient) error
}

// hostile sends what no client sends, to a leader of each shard in turn and to any
// server's ports. The final reads and the digests show that nothing changed.
func hostile(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	a.target = l.Server
	conn, err := rpc.Dial(l.Server, nil, func(ctx context.Context, name string) (net.Conn, error) {
		return a.Cluster.Connect(ctx, name, false)
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	refused, err := a.badCalls(ctx, conn, shard)
	if err != nil {
		return err
	}
	sent := 0
	for _, peerPort := range []bool{true, false} {
		for _, g := range a.garbage() {
			if a.sendGarbage(ctx, l.Server, peerPort, g) {
				sent++
			}
		}
	}
	if refused > 0 && sent > 0 {
		a.saw("%d malformed requests refused, garbage on %d connections", refused, sent)
	}
	return nil
}

// badCalls makes every bad request and returns how many were refused for what they
// are, rather than for a server that is away.
func (a *act) badCalls(ctx context.Context, conn *grpc.ClientConn, shard rowraft.ShardID) (refused int, err error) {
	var id [16]byte
	binary.LittleEndian.PutUint64(id[:], a.rng.Uint64())
	stub := rowraftv1.NewTableClient(conn)
	open, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _ = stub.OpenSession(open, &rowraftv1.OpenSessionRequest{Shard: uint32(shard), ClientId: id[:], Incarnation: 1,
		Ticket: 1})
	for _, b := range a.badRequests(id[:], shard) {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := b.call(try, stub)
		cancel()
		switch code := rowraft.CodeOf(err); {
		case err == nil:
			return refused, fmt.Errorf("VIOLATION: a server has accepted a request with %s", b.name)
		case code == rowraft.CodeInternal:
			return refused, fmt.Errorf("VIOLATION: a request with %s ends in an internal error: %w", b.name, err)
		case !code.Retryable():
			refused++
		}
	}
	return refused, nil
}

func (a *act) badRequests(id []byte, shard rowraft.ShardID) []badRequest {
	keys := a.Load.Keys()
	dims := a.Load.Dims()
	table := a.Load.TableID()
	mine := []rowraft.Key{keys[int(shard)%len(keys)]}
	// segment returns a payload that is right but for what change does.
	segment := func(s wire.Segment, keys []rowraft.Key, v float32, change func([]byte) []byte) []byte {
		s.N = len(keys)
		b := make([]byte, s.Size())
		body := s.Put(b)
		for i, k := range keys {
			binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(k))
		}
		for i := 0; i+4 <= len(body.Values); i += 4 {
			binary.LittleEndian.PutUint32(body.Values[i:], math.Float32bits(v))
		}
		if change != nil {
			b = change(b)
		}
		return b
	}
	good := wire.Segment{Table: table, Dim: dims, DType: rowraft.Float32}
	wrong := func(change func(*wire.Segment)) wire.Segment { s := good; change(&s); return s }
	push := func(name string, payload []byte) badRequest {
		return badRequest{name, func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: math.MaxUint64,
				Shard: uint32(shard), ClientId: id, Incarnation: 1, Seq: 1, Payload: payload})
			return err
		}}
	}
	pull := func(name string, payload []byte) badRequest {
		return badRequest{name, func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Pull(ctx, &rowraftv1.PullRequest{MapVersion: math.MaxUint64, Shard: uint32(shard),
				Mode: rowraftv1.ReadMode_READ_MODE_LEADER, Payload: payload})
			return err
		}}
	}
	junk := make([]byte, 1+a.rng.IntN(4096))
	for i := range junk {
		junk[i] = byte(a.rng.Uint32())
	}
	cut := func(b []byte) []byte { return b[:a.rng.IntN(len(b)-1)+1] }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	two := []rowraft.Key{mine[0], mine[0]}
	keysOnly := wrong(func(s *wire.Segment) { s.Flags = wire.FlagNoValues })
	return []badRequest{
		push("NaN gradients", segment(good, mine, nan, nil)),
		push("infinite gradients", segment(good, mine, inf, nil)),
		push("a key twice", segment(good, two, -1, nil)),
		push("a wrong dim", segment(wrong(func(s *wire.Segment) { s.Dim = dims + 1 }), mine, -1, nil)),
		push("an unknown table", segment(wrong(func(s *wire.Segment) { s.Table = table + 1 }), mine, -1, nil)),
		push("an unknown dtype", segment(good, mine, -1, func(b []byte) []byte { b[14] = 77; return b })),
		push("a count of 2³² keys", segment(good, mine, -1, func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[8:], math.MaxUint32)
			return b
		})),
		push("a cut segment", segment(good, mine, -1, cut)),
		push("reserved bytes", segment(good, mine, -1, func(b []byte) []byte { b[20] = 1; return b })),
		push("a negative learning rate", segment(wrong(func(s *wire.Segment) { s.Flags, s.LR = wire.FlagLR, -1 }), mine, -1,
			nil)),
		push("junk", junk),
		pull("junk", junk),
		pull("a cut segment", segment(keysOnly, mine, 0, cut)),
		pull("a count of 2³² keys", segment(keysOnly, mine, 0, func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[8:], math.MaxUint32)
			return b
		})),
		{"a short client id", func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: math.MaxUint64,
				Shard: uint32(shard), ClientId: id[:7], Incarnation: 1, Seq: 1, Payload: segment(good, mine, -1, nil)})
			return err
		}},
		{"an incarnation never issued", func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: math.MaxUint64,
				Shard: uint32(shard), ClientId: id, Incarnation: 1 << 40, Seq: 1, Payload: segment(good, mine, -1, nil)})
			return err
		}},
		{"number 0", func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: math.MaxUint64,
				Shard: uint32(shard), ClientId: id, Incarnation: 1, Payload: segment(good, mine, -1, nil)})
			return err
		}},
		{"a number far above the window", func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: math.MaxUint64,
				Shard: uint32(shard), ClientId: id, Incarnation: 1, Seq: 1 << 50, Payload: segment(good, mine, -1, nil)})
			return err
		}},
		{"a shard that does not exist", func(ctx context.Context, t rowraftv1.TableClient) error {
			_, err := t.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: math.MaxUint64,
				Shard: 200, ClientId: id, Incarnation: 1, Seq: 1, Payload: segment(good, mine, -1, nil)})
			return err
		}},
	}
}

// garbage is what may arrive on a port that anybody can reach.
func (a *act) garbage() [][]byte {
	junk := make([]byte, 1+a.rng.IntN(2048))
	for i := range junk {
		junk[i] = byte(a.rng.Uint32())
	}
	return [][]byte{
		junk,
		{}, // nothing at all
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		[]byte("RWPR"),
		append([]byte("RWPR\x01\x00\xff\xff"), junk...),
		append([]byte("RWPR\x63\x00\x04\x00"), junk...),
		append([]byte("RWPR\x01\x00\x09\x00\x00\x01c\x01f\x01t\x01g"), 0, 0, 0, 0),
	}
}

// sendGarbage writes b and waits a little for what the server does about it.
func (a *act) sendGarbage(ctx context.Context, server string, peerPort bool, b []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := a.Cluster.Connect(ctx, server, peerPort)
	if err != nil {
		return false
	}
	defer c.Close()
	if _, err := c.Write(b); err != nil {
		return false
	}
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, _ = c.Read(make([]byte, 512))
	return true
}
