package meta

import (
	"encoding/binary"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// Entries and snapshots have the same frame (docs/formats/metadata.md): magic, version, payload length, CRC-32C of the
// preceding bytes and of the payload, payload.
const (
	entryMagic    = "RRME"
	snapshotMagic = "RRMS"
	frameBytes    = 16

	// maxSnapshotBytes bounds the memory that a damaged length can make decodeFrame allocate.
	maxSnapshotBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// marshal is deterministic within one binary. Nothing compares the bytes of two binaries.
var marshal = proto.MarshalOptions{Deterministic: true}

func encodeFrame(magic string, version rowraft.FormatVersion, m proto.Message) ([]byte, error) {
	payload, err := marshal.Marshal(m)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "encode %s: %w", magic, err)
	}
	b := make([]byte, frameBytes, frameBytes+len(payload))
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[4:], uint32(version))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, payload))
	return append(b, payload...), nil
}

// decodeFrame reads one frame from r and no byte after it.
func decodeFrame(r io.Reader, magic string, m proto.Message) error {
	var head [frameBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: header: %w", magic, err)
	}
	if string(head[:4]) != magic {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata: magic %q, want %q", head[:4], magic)
	}
	switch v, newest := binary.LittleEndian.Uint32(head[4:]), wire.NewestVersion(); {
	case v > uint32(newest):
		return rowraft.Errorf(rowraft.CodeVersionTooNew,
			"metadata %s: version %d, this binary understands up to %d: upgrade it", magic, v, newest)
	case v < uint32(wire.FirstVersion):
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: version %d, want at least %d", magic, v, wire.FirstVersion)
	}
	// The length is checked before the checksum, because the checksum needs the payload, and a damaged length would
	// allocate any amount of memory for it.
	n := binary.LittleEndian.Uint32(head[8:])
	if n > maxSnapshotBytes {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: %d bytes announced, at most %d are possible", magic, n,
			maxSnapshotBytes)
	}
	payload, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: payload: %w", magic, err)
	}
	if len(payload) != int(n) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: %d bytes of %d", magic, len(payload), n)
	}
	sum := crc32.Update(crc32.Checksum(head[:12], castagnoli), castagnoli, payload)
	if want := binary.LittleEndian.Uint32(head[12:]); sum != want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: checksum %08x, want %08x", magic, sum, want)
	}
	// An unknown field would be lost from the state, so it is an error (below).
	if err := (proto.UnmarshalOptions{}).Unmarshal(payload, m); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: %w", magic, err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		return rowraft.Errorf(rowraft.CodeVersionTooNew, "metadata %s: it has fields this binary does not know", magic)
	}
	return nil
}

// EncodeEntry encodes a command as an entry of the log of the scheduler's group.
func EncodeEntry(version rowraft.FormatVersion, c *rowraftv1.MetaCommand) ([]byte, error) {
	return encodeFrame(entryMagic, version, c)
}

// RequiredVersion returns the lowest version that can express m. A later version adds
// its commands and fields here.
func RequiredVersion(proto.Message) rowraft.FormatVersion { return wire.FirstVersion }
