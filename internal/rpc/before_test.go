package rpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func TestBatchSizesAreSaid(t *testing.T) {
	for said, want := range map[string]*BatchSize{
		"3/4712":          {Shard: 3, Bytes: 4712},
		"0/0":             {},
		"3/4712/delete":   {Shard: 3, Bytes: 4712, Delete: true},
		"4294967295/1024": {Shard: 1<<32 - 1, Bytes: 1024},
		"":                nil, "3": nil, "/": nil, "3/": nil, "/5": nil, "-1/5": nil, "3/-5": nil, "3/5/6": nil,
		"3/delete": nil, "3/5/push": nil, " 3/5": nil, "3/+5": nil,
		"4294967296/5":           nil,
		"3/99999999999999999999": nil,
		"3/2147483647":           nil, // more than any request has
	} {
		got, ok := parseBatchSize(said)
		if ok != (want != nil) || ok && got != *want {
			t.Errorf("%q is read as %+v, %v, want %+v", said, got, ok, want)
		}
		if ok && got.String() != said {
			t.Errorf("%+v is written as %q", got, got.String())
		}
	}
	twice := metadata.NewIncomingContext(t.Context(), metadata.Pairs(batchHeader, "1/1", batchHeader, "1/1"))
	if p := BatchSizesOf(twice); p != nil {
		t.Errorf("two headers: %+v", p)
	}
	for said, want := range map[string][]BatchSize{
		"1/10,2/20/delete,3/30": {{Shard: 1, Bytes: 10}, {Shard: 2, Bytes: 20, Delete: true}, {Shard: 3, Bytes: 30}},
		"1/10,":                 nil, ",1/10": nil, "1/10, 2/20": nil,
		strings.Repeat("1/10,", MaxBatches) + "1/10": nil,
	} {
		got := BatchSizesOf(metadata.NewIncomingContext(t.Context(), metadata.Pairs(batchHeader, said)))
		if !slices.Equal(got, want) {
			t.Errorf("%q is read as %+v, want %+v", said, got, want)
		}
		if sent, _ := metadata.FromOutgoingContext(WithBatchSizes(t.Context(), want...)); want != nil &&
			sent.Get(batchHeader)[0] != said {
			t.Errorf("%+v is written as %q", want, sent.Get(batchHeader))
		}
	}
}

// garbage is a codec that sends bytes unchanged: no server can parse them.
type garbage struct{}

func (garbage) Name() string { return "proto" }
func (garbage) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (garbage) Unmarshal(mem.BufferSlice, any) error { return nil }

type pushes struct {
	rowraftv1.UnimplementedTableServer
	taken atomic.Int64
}

func (p *pushes) Write(context.Context, *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
	p.taken.Add(1)
	return &rowraftv1.WriteReply{}, nil
}

// TestCallsAreRefusedBeforeTheirBodies: a refused call is not read, uses nothing of the flow-control window of its
// connection, and gets the time at which to try again.
func TestCallsAreRefusedBeforeTheirBodies(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(ctx context.Context) error {
		if slices.Equal(BatchSizesOf(ctx), []BatchSize{{Shard: 7, Bytes: 99}}) {
			return &rowraft.OverloadedError{What: "busy", RetryAfter: 40 * time.Millisecond}
		}
		return nil
	}
	server, service := grpc.NewServer(ServerOptions(nil)...), &pushes{}
	server.RegisterService(BeforeBodies(&rowraftv1.Table_ServiceDesc,
		map[string]func(context.Context) error{"Write": refuse}), service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	conn, err := Dial(l.Addr().String(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	refused := WithBatchSizes(ctx, BatchSize{Shard: 7, Bytes: 99})
	body := make([]byte, MaxRequestBytes/2)
	for i := range body {
		body[i] = 0xff
	}
	for range 2 + 4*windowBytes/len(body) {
		var reply []byte
		err := conn.Invoke(refused, rowraftv1.Table_Write_FullMethodName, &body, &reply, grpc.ForceCodecV2(garbage{}),
			grpc.WaitForReady(true))
		o, ok := errors.AsType[*rowraft.OverloadedError](err)
		if !ok || o.RetryAfter != 40*time.Millisecond {
			t.Fatalf("refused with %v, want an OverloadedError with RetryAfter", err)
		}
	}
	if err := conn.Invoke(ctx, rowraftv1.Table_Write_FullMethodName, &body, &body,
		grpc.ForceCodecV2(garbage{})); err == nil || rowraft.CodeOf(err) == rowraft.CodeOverloaded {
		t.Errorf("an invalid message that is read: %v", err)
	}
	stub := rowraftv1.NewTableClient(conn)
	if _, err := stub.Write(refused,
		&rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH,
			Payload: body}); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a good push that is refused: %v", err)
	}
	if _, err := stub.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH,
		Payload: body}); err != nil || service.taken.Load() != 1 {
		t.Errorf("a push that is not refused: %v, %d taken", err, service.taken.Load())
	}
	if _, err := stub.Pull(refused, &rowraftv1.PullRequest{}); rowraft.CodeOf(err) == rowraft.CodeOverloaded {
		t.Errorf("a call without a check: %v", err)
	}
}
