package entry

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// OverheadBytes is what an entry costs in addition to its data, for limits in bytes: otherwise many tiny entries would
// cost nothing.
const OverheadBytes = 64

// Position identifies an entry of a log.
type Position struct{ Index, Term uint64 }

// Bytes of a head and of a seal.
const (
	dataSealBytes = 4 // until the entry has its place in the log
	SealBytes     = 8
	HeadBytes     = 32 + SealBytes
)

// Seal returns the first half of the seal, the checksum of the data. dispatch computes it.
func Seal(data []byte) []byte {
	return binary.LittleEndian.AppendUint32(make([]byte, 0, SealBytes), crc32.Checksum(data, castagnoli))
}

// placeSeal returns the second half, the checksum of the place in the log and of the first half.
func placeSeal(l *raft.Log, data []byte) uint32 {
	var b [25 + dataSealBytes]byte
	binary.LittleEndian.PutUint64(b[0:], l.Index)
	binary.LittleEndian.PutUint64(b[8:], l.Term)
	b[16] = byte(l.Type)
	// the length, because zeros after ff ff ff ff have no effect on a CRC
	binary.LittleEndian.PutUint64(b[17:], uint64(len(l.Data)))
	copy(b[25:], data)
	return crc32.Checksum(b[:], castagnoli)
}

// Complete completes the seal of an entry that is stored for the first time, and checks the seal of an entry that came
// from the leader. Raft's own entries have no seal before.
func Complete(l *raft.Log) error {
	switch {
	case len(l.Extensions) == SealBytes:
		return Check(l)
	case len(l.Extensions) == 0 && l.Type != raft.LogCommand:
		l.Extensions = Seal(l.Data)
	case len(l.Extensions) != dataSealBytes:
		return BadSeal(l)
	}
	l.Extensions = binary.LittleEndian.AppendUint32(l.Extensions, placeSeal(l, l.Extensions))
	return nil
}

// BadSeal returns the error for an entry whose seal has another length than SealBytes.
func BadSeal(l *raft.Log) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, "entry %d has %d bytes of checksum, want %d", l.Index, len(l.Extensions),
		SealBytes)
}

func checkPlace(l *raft.Log) error {
	if len(l.Extensions) != SealBytes {
		return BadSeal(l)
	}
	if got, want := placeSeal(l, l.Extensions[:dataSealBytes]),
		binary.LittleEndian.Uint32(l.Extensions[dataSealBytes:]); got != want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "entry %d of term %d and type %v has checksum %08x, want %08x", l.Index,
			l.Term, l.Type, got, want)
	}
	return nil
}

// Check verifies the seal of an entry of the log. Errors: CodeCorrupt.
func Check(l *raft.Log) error {
	if err := checkPlace(l); err != nil {
		return err
	}
	if got, want := crc32.Checksum(l.Data, castagnoli), binary.LittleEndian.Uint32(l.Extensions); got != want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "entry %d has checksum %08x, want %08x", l.Index, got, want)
	}
	return nil
}
