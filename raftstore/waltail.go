package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Of raft-wal's segment files: a header, then frames of 8 bytes and a payload padded
// to 8. A batch ends with a commit frame, whose number is the CRC of what follows
// the commit before, in the first batch of the whole file.
const (
	segmentHeader = 32
	frameHeader   = 8
)

// cutTail zeroes what follows the last whole batch of a segment that is opened to
// be written on: a batch that a crash or a full disk cut short. raft-wal v0.4.2
// writes over it, but still goes by it:
//   - an index frame in it makes the segment count as full, and its index is then
//     looked for in the middle of nowhere: "failed to read segment index: EOF", at
//     every start;
//   - entries that are left of it behind a later batch make that batch count as
//     whole without a look at its CRC.
//
// Errors: CodeCorrupt if what stands there cannot be one batch cut short, so that
// entries that were answered for would be lost; those of the disk.
func cutTail(disk vfs.FS, name string) (err error) {
	info, err := disk.Stat(name)
	if err != nil {
		return err
	}
	f, err := disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := lastBatch(f, info.Size())
	if err != nil {
		return fmt.Errorf("log segment %s: %w", f.Name(), err)
	}
	used, err := usedUpTo(f, end, info.Size())
	if err != nil || used == end {
		return err
	}
	rest := make([]byte, used-end)
	if _, err := f.ReadAt(rest, end); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if at := laterBatch(rest); at >= 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "log segment %s is damaged at byte %d: a whole batch of entries follows at byte %d", f.Name(), end, end+int64(at))
	}
	// The next batch's sync takes the zeros along; until then the rest, back after a
	// crash, is cut off again.
	clear(rest)
	_, err = f.WriteAt(rest, end)
	return err
}

// usedUpTo returns where the last byte between from and to ends that is not zero,
// or from. Most of a segment is preallocated and empty, so it is read in pieces.
func usedUpTo(f vfs.File, from, to int64) (int64, error) {
	used, piece := from, make([]byte, min(to-from, 1<<20))
	for at := from; at < to; {
		n, err := f.ReadAt(piece[:min(int64(len(piece)), to-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if n == 0 {
			break
		}
		if left := bytes.TrimRight(piece[:n], "\x00"); len(left) > 0 {
			used = at + int64(len(left))
		}
		at += int64(n)
	}
	return used, nil
}

// lastBatch returns where the last whole batch of a segment ends, 0 if there is none.
func lastBatch(f vfs.File, size int64) (end int64, err error) {
	type commit struct {
		from, at int64
		crc      uint32
	}
	var last, before *commit
	var h [frameHeader]byte
	from := int64(0)
	for at := int64(segmentHeader); at+frameHeader <= size; {
		if _, err := f.ReadAt(h[:], at); err != nil {
			return 0, err
		}
		next, ok := nextFrame(h[:], at)
		if !ok || next > size {
			break
		}
		if h[0] == segment.FrameCommit {
			before, last = last, &commit{from, at, binary.LittleEndian.Uint32(h[4:])}
			from = next
		}
		at = next
	}
	whole := func(c *commit) (bool, error) {
		batch := make([]byte, c.at-c.from)
		_, err := f.ReadAt(batch, c.from)
		return crc32.Checksum(batch, castagnoli) == c.crc, err
	}
	for _, c := range []*commit{last, before} {
		if c == nil {
			return 0, nil
		}
		if ok, err := whole(c); ok || err != nil {
			return c.at + frameHeader, err
		}
	}
	// The one before the last was synced before the last was begun.
	return 0, rowraft.Errorf(rowraft.CodeCorrupt, "the batch of entries that ends at byte %d is damaged", before.at)
}

// nextFrame returns where the frame after that with header h ends, which stands at at.
func nextFrame(h []byte, at int64) (next int64, ok bool) {
	switch h[0] {
	case segment.FrameCommit:
		return at + frameHeader, true
	case segment.FrameEntry, segment.FrameIndex:
		n := int64(binary.LittleEndian.Uint32(h[4:]))
		return at + frameHeader + (n+frameHeader-1)/frameHeader*frameHeader, true
	}
	return 0, false
}

// laterBatch returns where in b a whole batch begins that follows a commit frame, or
// −1. There is none in one batch that was cut short.
func laterBatch(b []byte) int {
	for start := 0; start+frameHeader < len(b); start += frameHeader {
		if h := b[start:]; h[0] != segment.FrameCommit || h[1]|h[2]|h[3] != 0 {
			continue
		}
		from := start + frameHeader
		for at := int64(from); at+frameHeader <= int64(len(b)); {
			h := b[at : at+frameHeader]
			next, ok := nextFrame(h, at)
			if !ok || next > int64(len(b)) {
				break
			}
			if h[0] == segment.FrameCommit {
				if at > int64(from) && crc32.Checksum(b[from:at], castagnoli) == binary.LittleEndian.Uint32(h[4:]) {
					return from
				}
				break
			}
			at = next
		}
	}
	return -1
}
