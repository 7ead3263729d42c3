package jobs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	// statePatience bounds how long a trainer may take to send the next chunk of its state.
	statePatience = 30 * time.Second
	// minStateRate is the minimum rate, in bytes per second, for the state of a job that may be left out.
	minStateRate = 256 << 10
)

// upload is one chunk of a trainer's state, or the error that ended the call.
type upload struct {
	piece *rowraftv1.SendStateRequest
	err   error
}

// SendState forwards the state of a trainer to the checkpoint that requested it.
func (c *Trainers) SendState(stream grpc.ClientStreamingServer[rowraftv1.SendStateRequest,
	rowraftv1.SendStateReply]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	id := meta.TrainerID{Job: first.GetMember().GetJob(), Rank: first.GetMember().GetRank()}
	if err := c.CheckOwner(stream.Context(), id.Job); err != nil {
		return err
	}
	var p *pausedTrainer
	if a := c.find(first.GetMember()); a != nil {
		c.mu.Lock()
		p = a.sending[first.GetId()]
		c.mu.Unlock()
	}
	if p == nil {
		return rowraft.Errorf(rowraft.CodePrecondition, "no checkpoint wants the state of %s at pause %d (any more)", id,
			first.GetId())
	}
	for piece := first; ; {
		select {
		// The channel has no buffer: the trainer sends as fast as the destination takes the bytes, so a state of any size
		// uses the memory of one message.
		case p.state <- upload{piece: piece}:
		case <-p.done:
			return rowraft.Errorf(rowraft.CodePrecondition, "the checkpoint that wanted the state of %s is over", id)
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if piece.GetLast() {
			return stream.SendAndClose(&rowraftv1.SendStateReply{})
		}
		if piece, err = stream.Recv(); err != nil {
			select {
			case p.state <- upload{err: err}:
			case <-p.done:
			}
			return err
		}
	}
}

// Store receives the states of the trainers and writes them to the destination.
func (m *pauseRound) Store(ctx context.Context, d depot.Depot, name string, tag []byte) error {
	for i, p := range m.members {
		p.blob = checkpoint.Blob{Name: blobOf(p.a.id), File: checkpoint.File{Name: fmt.Sprintf("trainer-%04d-%x", i, tag)}}
	}
	m.again = false // no other attempt follows
	return m.each(ctx, m.members, func(ctx context.Context, p *pausedTrainer) error {
		// Also after an error: the trainer would otherwise wait for a reader of its next message.
		defer m.done(p)
		w := &summed{hash: sha256.New()}
		err := d.Write(ctx, name+"/"+p.blob.File.Name, func(dst io.Writer) error {
			w.dst = dst
			return p.receive(ctx, w, m.c.patience.state, p.a.id.Job != m.need)
		})
		if err != nil {
			err = fmt.Errorf("state of %s: %w", p.a.id, err)
			if _, ofTrainer := errors.AsType[*unsentError](err); !ofTrainer {
				err = &destinationError{err}
			}
			return err
		}
		p.blob.File.Bytes, p.blob.File.SHA256 = w.n, [32]byte(w.hash.Sum(nil))
		return nil
	})
}

// unsentError means that a trainer did not send its state.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// destinationError means that the destination of a checkpoint failed. It fails the checkpoint and leaves no job out.
type destinationError struct{ error }

func (e *destinationError) Unwrap() error { return e.error }

func ofDestination(err error) bool {
	_, is := errors.AsType[*destinationError](err)
	return is
}

// blobOf returns the name of a trainer's state in a checkpoint (docs/formats/trainer-state.md).
func blobOf(id meta.TrainerID) string { return fmt.Sprintf("trainer/%s/%d", id.Job, id.Rank) }

// receive receives the chunks of a state until the last. If bounded is set, the state must arrive at minStateRate.
func (p *pausedTrainer) receive(ctx context.Context, w io.Writer, patience time.Duration, bounded bool) error {
	if bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience+time.Duration(p.bytes/minStateRate)*time.Second)
		defer cancel()
	}
	for total := uint64(0); ; {
		piece, err := p.nextPiece(ctx, patience)
		if err != nil {
			return err
		}
		// The manifest gets the size and the hash of what arrived. A state that ends early would look whole.
		if total += uint64(len(piece.GetContent())); total > p.bytes || piece.GetLast() && total < p.bytes {
			return &unsentError{rowraft.Errorf(rowraft.CodeInternal, "the trainer sent %d bytes, and had announced %d", total,
				p.bytes)}
		}
		if _, err := w.Write(piece.GetContent()); err != nil {
			return err
		}
		if piece.GetLast() {
			return nil
		}
	}
}

// nextPiece waits for the next chunk of a state.
func (p *pausedTrainer) nextPiece(ctx context.Context, patience time.Duration) (*rowraftv1.SendStateRequest, error) {
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	var why error
	select {
	case u := <-p.state:
		if u.err == nil {
			return u.piece, nil
		}
		why = rowraft.Errorf(rowraft.CodeNoLeader, "the trainer sends no more: %w", u.err)
	case <-p.a.gone:
		why = rowraft.Errorf(rowraft.CodeNoLeader, "%s has disconnected", p.a.id)
	case <-quiet.C:
		why = rowraft.Errorf(rowraft.CodeDeadline, "the trainer has sent nothing for %v", patience)
	case <-ctx.Done():
		why = rowraft.Errorf(rowraft.CodeDeadline, "the trainer does not send it in time: %w", ctx.Err())
	}
	return nil, &unsentError{why}
}

// summed counts and hashes the bytes that it writes to dst.
type summed struct {
	dst  io.Writer
	hash hash.Hash
	n    int64
}

func (s *summed) Write(b []byte) (int, error) {
	_, _ = s.hash.Write(b) // never fails
	s.n += int64(len(b))
	return s.dst.Write(b)
}
