package entry

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/raft"
)

// Head is the fixed part of an encoded entry, before its data.
type Head struct {
	Index, Term uint64
	appended    int64
	typ         uint8
	Length      uint32
	Seal        [SealBytes]byte
}

// AppendHead appends the head of l, which carries its seal.
func AppendHead(b []byte, l *raft.Log) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, l.Index)
	b = le.AppendUint64(b, l.Term)
	at := int64(0)
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = le.AppendUint64(b, uint64(at))
	b = append(b, byte(l.Type), 0, 0, 0)
	b = le.AppendUint32(b, uint32(len(l.Data)))
	return append(b, l.Extensions...)
}

// ParseHead reads the first HeadBytes of b. Any bytes are a head.
func ParseHead(b []byte) Head {
	le := binary.LittleEndian
	return Head{
		Index: le.Uint64(b), Term: le.Uint64(b[8:]), appended: int64(le.Uint64(b[16:])), typ: b[24],
		Length: le.Uint32(b[28:]), Seal: [SealBytes]byte(b[32:40]),
	}
}

// Put sets l to the entry whose head and data are b. l keeps b.
func (h Head) Put(l *raft.Log, b []byte) {
	*l = raft.Log{Index: h.Index, Term: h.Term, Type: raft.LogType(h.typ), Data: b[HeadBytes:], Extensions: b[32:40:40]}
	if h.appended != 0 {
		l.AppendedAt = time.Unix(0, h.appended)
	}
}
