package average

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Version of the frames.
const Version = 1

const (
	magic      = "RWAV"
	headBytes  = 32
	sliceBytes = 256 << 10 // numbers are converted in runs of this size
	aheadBytes = 4 << 20   // allocated for a frame before its bytes arrive
)

// kind is the kind of a frame.
type kind uint16

const (
	hello    kind = 1 // member: it is about to do this round; with the job's id
	begin    kind = 2 // hub: all members are there, send your share of this round
	wanted   kind = 3 // hub: send your numbers, other members are behind
	state    kind = 4 // numbers that the receiver must load before this round
	part     kind = 5 // member: its share of a round
	result   kind = 6 // hub: the mean, and its number of contributors
	farewell kind = 7 // member: it does no more rounds
	refused  kind = 8 // hub: the reason, as a rowraft.Code
)

// frame is one message; values are float32 bits, in a hello the job's id.
type frame struct {
	kind       kind
	generation uint64
	round      uint64
	who        uint32 // rank of a member; contributors of a result; code of a refusal
	values     []float32
}

var le = binary.LittleEndian

// frameCodec writes and reads frames through one buffer. Not safe for concurrent use.
type frameCodec struct{ buf []byte }

// write sends f to w.
func (c *frameCodec) write(w io.Writer, f *frame) error {
	b := append(c.buf[:0], magic...)
	b = le.AppendUint16(b, Version)
	b = le.AppendUint16(b, uint16(f.kind))
	b = le.AppendUint64(b, f.generation)
	b = le.AppendUint64(b, f.round)
	b = le.AppendUint32(b, f.who)
	b = le.AppendUint32(b, uint32(len(f.values)))
	for rest := f.values; ; {
		n := min(len(rest), sliceBytes/4)
		at := len(b)
		b = slices.Grow(b, 4*n)[:at+4*n]
		wire.PutFloats(b[at:], rowraft.Float32, rest[:n])
		rest = rest[n:]
		if _, err := w.Write(b); err != nil {
			return err
		}
		if c.buf = b; len(rest) == 0 {
			return nil
		}
		b = b[:0]
	}
}

// read reads the next frame from r, of at most limit values, into values if they fit.
//
// Errors: CodeCorrupt, CodeVersionTooNew, CodeInvalidArgument for a frame that is too long; those of r.
func (c *frameCodec) read(r io.Reader, limit int, values []float32) (*frame, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	f, n, err := parseHead(head[:], limit)
	if err != nil {
		return nil, err
	}
	if cap(values) < n {
		// Grow with the bytes that arrive, so that a length alone takes little memory.
		values = make([]float32, 0, min(n, aheadBytes/4))
	}
	f.values = values[:0]
	if cap(c.buf) < sliceBytes {
		c.buf = make([]byte, sliceBytes)
	}
	for len(f.values) < n {
		b := c.buf[:min(4*(n-len(f.values)), sliceBytes)]
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, fmt.Errorf("a frame is cut short: %w", err)
		}
		at := len(f.values)
		f.values = slices.Grow(f.values, len(b)/4)[:at+len(b)/4]
		wire.GetFloats(f.values[at:], rowraft.Float32, b)
	}
	return f, nil
}

func parseHead(b []byte, limit int) (f *frame, values int, err error) {
	if string(b[:4]) != magic {
		return nil, 0, rowraft.Errorf(rowraft.CodeCorrupt, "a frame begins with %x, want %x", b[:4], magic)
	}
	if v := le.Uint16(b[4:]); v > Version {
		return nil, 0, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"the other trainer averages in version %d, this one in version %d: use one version of rowraft-trainer", v, Version)
	} else if v < Version {
		return nil, 0, rowraft.Errorf(rowraft.CodeCorrupt, "a frame of version %d", v)
	}
	f = &frame{kind: kind(le.Uint16(b[6:])), generation: le.Uint64(b[8:]), round: le.Uint64(b[16:]),
		who: le.Uint32(b[24:])}
	if f.kind < hello || f.kind > refused {
		return nil, 0, rowraft.Errorf(rowraft.CodeCorrupt, "a frame of kind %d", f.kind)
	}
	n := le.Uint32(b[28:])
	if uint64(n) > uint64(limit) {
		return nil, 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "a frame has %d numbers, and the limit is %d", n,
			limit)
	}
	return f, int(n), nil
}
