package peer

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
)

func FuzzPreamble(f *testing.F) {
	good, _ := hex.DecodeString(goldenPreamble)
	f.Add(good)
	f.Add((&preamble{cluster: "cluster-with-a-long-name", from: "n1", to: "n2", group: "shard-255"}).marshal())
	f.Add(good[:8])
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b); n >= fixedBytes+4 { // set the checksum, so that the bytes after it are tested too
			b = bytes.Clone(b)
			end := min(fixedBytes+int(binary.LittleEndian.Uint16(b[6:])), n-4)
			binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			p, status, err := readPreamble(bytes.NewReader(b))
			switch {
			case err == nil && !bytes.HasPrefix(b, p.marshal()):
				t.Errorf("%x was read as %+v, which is written as %x", b, p, p.marshal())
			case err != nil && status == statusOK:
				t.Errorf("%v would be answered with OK", err)
			}
		})
	})
}

func FuzzReply(f *testing.F) {
	for s := statusOK; s <= statusBusy+1; s++ {
		f.Add(marshalReply(s, "why"))
	}
	good, _ := hex.DecodeString(goldenReply)
	f.Add(good)
	f.Add(marshalStatement(statusStale, &goldenStatement))
	f.Add([]byte{0, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b); n >= 7 { // set the checksum, so that the bytes after it are tested too
			b = bytes.Clone(b)
			end := min(3+int(binary.LittleEndian.Uint16(b[1:])), n)
			binary.LittleEndian.PutUint32(b[3:], crc32.Checksum(b[min(7, end):end], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			statement, status, err := readReply(bytes.NewReader(b))
			if err == nil && !bytes.HasPrefix(b, marshalStatement(status, &statement)) {
				t.Errorf("%x was read as %v, %+v, which is written as %x", b, status, statement,
					marshalStatement(status, &statement))
			}
			if err != nil && rowraft.CodeOf(err) == rowraft.CodeUnknown && len(b) >= 3+maxReplyText {
				t.Errorf("%v has no code", err)
			}
		})
	})
}
