package rpc

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/rowraft/rowraft"
)

// batchHeader announces the payloads of a Write or WriteMany before its body: for each batch SHARD/BYTES,
// both decimal, then /delete if the batch only removes rows; a comma between two batches. A server that
// has no room for the payloads refuses the call without reading it. A call without the header is refused
// once its body has been read.
const batchHeader = "rowraft-batch"

// BatchSize is the content of batchHeader.
type BatchSize struct {
	Shard  uint32
	Bytes  int  // size of the payload
	Delete bool // the write makes no rows
}

// WithBatchSizes returns ctx for a call whose body has the given batches.
func WithBatchSizes(ctx context.Context, batches ...BatchSize) context.Context {
	b := make([]byte, 0, 24*len(batches))
	for i, p := range batches {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.append(b)
	}
	return metadata.AppendToOutgoingContext(ctx, batchHeader, string(b))
}

func (p BatchSize) String() string { return string(p.append(nil)) }

func (p BatchSize) append(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(p.Shard), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(p.Bytes), 10)
	if p.Delete {
		b = append(b, deleteSuffix...)
	}
	return b
}

// BatchSizesOf returns the batches that the caller of ctx has announced; nil if there are none, or one is
// impossible.
func BatchSizesOf(ctx context.Context) (batches []BatchSize) {
	said := metadata.ValueFromIncomingContext(ctx, batchHeader)
	if len(said) != 1 {
		return nil
	}
	for one := range strings.SplitSeq(said[0], ",") {
		p, ok := parseBatchSize(one)
		if !ok || len(batches) == MaxBatches {
			return nil
		}
		batches = append(batches, p)
	}
	return batches
}

const deleteSuffix = "/delete"

func parseBatchSize(said string) (p BatchSize, ok bool) {
	said, p.Delete = strings.CutSuffix(said, deleteSuffix)
	shard, bytes, _ := strings.Cut(said, "/")
	s, err := strconv.ParseUint(shard, 10, 32)
	if err != nil {
		return BatchSize{}, false
	}
	n, err := strconv.ParseUint(bytes, 10, 32)
	if err != nil || n > MaxRequestBytes {
		return BatchSize{}, false
	}
	p.Shard, p.Bytes = uint32(s), int(n)
	return p, true
}

// clusterHeader names the cluster for which a call is meant. A server of another cluster refuses the call,
// even if everything else fits: after a cluster was lost, its servers may form another one under the same
// addresses.
const clusterHeader = "rowraft-cluster"

// WithCluster returns ctx for calls to servers of a cluster.
func WithCluster(ctx context.Context, id rowraft.ClusterID) context.Context {
	return metadata.AppendToOutgoingContext(ctx, clusterHeader, string(id))
}

// CheckCluster refuses the call of ctx if it is for another cluster than id.
func CheckCluster(ctx context.Context, id rowraft.ClusterID) error {
	for _, want := range metadata.ValueFromIncomingContext(ctx, clusterHeader) {
		if want != string(id) {
			return rowraft.Errorf(rowraft.CodeIdentity,
				"this server belongs to cluster %s, but the call is for cluster %q: nothing was done", id, want)
		}
	}
	return nil
}

// BeforeBodies returns desc with a check before each call with one request. It calls refuse[name] before the body of a
// call is read; if that returns an error, the body is not read. A caller that may not make the call gets
// the error of authorize instead.
func BeforeBodies(desc *grpc.ServiceDesc, refuse map[string]func(context.Context) error) *grpc.ServiceDesc {
	out := *desc
	out.Methods = slices.Clone(desc.Methods)
	for i := range out.Methods {
		m := &out.Methods[i]
		check := refuse[m.MethodName]
		if check == nil {
			continue
		}
		full, handle := "/"+desc.ServiceName+"/"+m.MethodName, m.Handler
		m.Handler = func(srv any, ctx context.Context, read func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
			known, err := authorize(ctx, full)
			if err == nil {
				err = check(known)
			}
			if err != nil {
				return nil, ToStatus(err)
			}
			return handle(srv, ctx, read, in)
		}
	}
	out.Streams = slices.Clone(desc.Streams)
	for i := range out.Streams {
		s := &out.Streams[i]
		check, handle := refuse[s.StreamName], s.Handler
		if check == nil {
			continue
		}
		s.Handler = func(srv any, stream grpc.ServerStream) error { // the interceptors have authorized the call
			if err := check(stream.Context()); err != nil {
				return err
			}
			return handle(srv, stream)
		}
	}
	return &out
}
