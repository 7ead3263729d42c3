package replica

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/traffic"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/shard"
)

// scanMessageBytes is the size up to which a scan fills a message. The last slot in a message may exceed
// it.
const scanMessageBytes = 512 << 10

// Scan streams the rows of some slots. It holds one message at a time: gRPC's flow control sends no faster
// than the client reads.
func (s *tableService) Scan(req *rowraftv1.ScanRequest, stream grpc.ServerStreamingServer[rowraftv1.ScanReply]) error {
	call := s.h.traffic.BeginTable(traffic.Scan, rowraft.TableID(req.Table))
	err := s.scan(req, stream, &call)
	call.End(err)
	return err
}

func (s *tableService) scan(req *rowraftv1.ScanRequest, stream grpc.ServerStreamingServer[rowraftv1.ScanReply],
	call *traffic.Call) error {
	r, err := s.h.replicaFor(req.Shard, req.MapVersion, req.TableEpoch)
	if err != nil {
		return err
	}
	if n := r.machine.SlotCount(); req.FirstSlot > req.LastSlot || req.LastSlot >= uint32(n) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "scan of slots %d to %d: want them ascending and below %d",
			req.FirstSlot, req.LastSlot, n)
	}
	if err := r.readyToScan(stream.Context(), rowraft.Index(req.MinIndex)); err != nil {
		return err
	}
	if _, err := mayTouchTable(r.machine, rpc.CallerOf(stream.Context()), rowraft.TableID(req.Table)); err != nil {
		return err
	}
	c, err := newScan(r.machine, req)
	if err != nil {
		return err
	}
	t, err := r.admit.Admit(stream.Context(), r.shard, admit.Pull, 2*scanMessageBytes)
	if err != nil {
		return err
	}
	defer t.Release()
	for c.slot <= req.LastSlot {
		reply, err := c.fill(req.LastSlot)
		if err == nil {
			err = s.h.mayGoOn(r, c.epoch)
		}
		if err != nil {
			rpc.Pool.Release(reply.GetPayload())
			return err
		}
		call.Sent(len(reply.Payload)) // before Send, which releases it
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
	return nil
}

// readyToScan returns when this replica has proved that it leads and has applied minIndex and everything
// committed before the call.
func (r *replica) readyToScan(ctx context.Context, minIndex rowraft.Index) error {
	if err := r.mustServe(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leadReadTimeout)
	defer cancel()
	index, err := r.confirm(ctx)
	if err != nil {
		return err
	}
	return r.awaitApplied(ctx, max(index, minIndex))
}

// scanCall is the state of a scan.
type scanCall struct {
	machine *shard.Machine
	scan    *shard.Scan
	epoch   rowraft.TableEpoch
	slot    uint32
	key     rowraft.Key
}

func newScan(m *shard.Machine, req *rowraftv1.ScanRequest) (*scanCall, error) {
	c := &scanCall{machine: m, epoch: m.Epoch(), slot: req.FirstSlot, key: rowraft.Key(req.FirstKey)}
	var err error
	c.scan, err = m.NewScan(rowraft.TableID(req.Table), rowraft.DType(min(req.Dtype, 0xff)))
	return c, err
}

// fill builds the next message, with slots up to last.
func (c *scanCall) fill(last uint32) (*rowraftv1.ScanReply, error) {
	reply := &rowraftv1.ScanReply{TableEpoch: uint64(c.epoch), AppliedIndex: uint64(c.machine.AppliedIndex())}
	payload := rpc.Pool.Bytes(2 * scanMessageBytes)[:0]
	for c.slot <= last && len(payload) < scanMessageBytes {
		out, next, done, err := c.scan.Append(payload, rowraft.Slot(c.slot), c.key)
		if cap(out) != cap(payload) {
			rpc.Pool.Release(payload)
		}
		payload = out
		if err != nil {
			reply.Payload = payload
			return reply, err
		}
		if c.key = next; done {
			c.slot, c.key = c.slot+1, 0
		}
	}
	reply.Payload, reply.NextSlot, reply.NextKey = payload, c.slot, uint64(c.key)
	return reply, nil
}

// mayGoOn reports whether the rows that were read for a scan may be sent: this replica still leads, and the
// tables are those of the epoch in which the scan began.
func (h *Host) mayGoOn(r *replica, epoch rowraft.TableEpoch) error {
	if h.opts.Stopping.Err() != nil {
		return rowraft.Errorf(rowraft.CodeClosing, "the server stops")
	}
	if now := r.machine.Epoch(); now != epoch {
		return rowraft.Errorf(rowraft.CodeSessionExpired,
			"shard %d: the scan began with the tables of epoch %d, a restore has brought those of %d", r.shard, epoch, now)
	}
	return r.mustServe()
}
