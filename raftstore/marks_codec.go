package raftstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/rowraft/rowraft"
)

// Bytes of the file of marks (docs/formats/marks.md), and of what servers tell each other of it
// (docs/formats/peer.md).
const (
	marksMagic   = "rowraftM"
	marksVersion = 1
)

// encode returns the file.
func (f *marksFile) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(len(f.nodes)))
	for _, node := range slices.Sorted(maps.Keys(f.nodes)) {
		b = appendProcess(appendName(b, string(node)), f.nodes[node])
	}
	b = le.AppendUint32(b, uint32(len(f.groups)))
	for _, group := range slices.Sorted(maps.Keys(f.groups)) {
		b = appendName(b, group)
		b = le.AppendUint32(b, uint32(len(f.groups[group])))
		for _, id := range slices.Sorted(maps.Keys(f.groups[group])) {
			b = appendMark(appendName(b, string(id)), f.groups[group][id])
		}
	}
	return sealFrame(marksMagic, marksVersion, b)
}

// decodeMarks reads the file. Errors: CodeCorrupt, CodeVersionTooNew.
func decodeMarks(raw []byte) (f marksFile, err error) {
	body, err := openFrame(raw, marksMagic, marksVersion)
	if err != nil {
		return f, err
	}
	f = marksFile{map[rowraft.NodeID]process{}, map[string]map[rowraft.ReplicaID]mark{}}
	r := metaReader{b: body, ok: true}
	for n := r.u32(); n > 0 && r.ok; n-- {
		node := rowraft.NodeID(r.name())
		f.nodes[node] = r.process()
	}
	for n := r.u32(); n > 0 && r.ok; n-- {
		group := r.name()
		f.groups[group] = map[rowraft.ReplicaID]mark{}
		for m := r.u32(); m > 0 && r.ok; m-- {
			id := rowraft.ReplicaID(r.name())
			f.groups[group][id] = r.mark()
		}
	}
	if !r.ok || len(r.b) > 0 {
		return marksFile{}, rowraft.Errorf(rowraft.CodeCorrupt, "the marks do not add up")
	}
	return f, nil
}

// statement is what the two ends of a peer connection tell each other before it carries anything:
// which process speaks, and what it remembers of the other end.
type statement struct {
	self    process
	about   process           // last one seen of the receiver's server; zero: none
	answers bool              // that one sent something a moment ago
	replica rowraft.ReplicaID // of the group on the receiver's server, as the sender knows the members; "": none
	mark    mark              // of that replica
}

func (s *statement) append(b []byte) []byte {
	b = appendProcess(appendProcess(b, s.self), s.about)
	if s.answers {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return appendMark(appendName(b, string(s.replica)), s.mark)
}

func (r *metaReader) statement() (s statement) {
	s.self, s.about = r.process(), r.process()
	switch r.take(1)[0] {
	case 0:
	case 1:
		s.answers = true
	default:
		r.ok = false
	}
	s.replica = rowraft.ReplicaID(r.name())
	s.mark = r.mark()
	return s
}

// told is what a leader tells its followers, in its heartbeats, of one member of the group.
type told struct {
	replica rowraft.ReplicaID
	node    rowraft.NodeID
	mark    mark
	process process
}

func appendTold(b []byte, t told) []byte {
	return appendProcess(appendMark(appendName(appendName(b, string(t.replica)), string(t.node)), t.mark), t.process)
}

var errTold = errors.New("the marks in a heartbeat do not add up")

// decodeTold reads what appendTold and sealTold wrote; nothing is no error.
func decodeTold(b []byte) (out []told, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < 4 || crc32.Checksum(b[4:], castagnoli) != binary.LittleEndian.Uint32(b) {
		return nil, errTold
	}
	r := metaReader{b: b[4:], ok: true}
	for len(r.b) > 0 {
		out = append(out, told{rowraft.ReplicaID(r.name()), rowraft.NodeID(r.name()), r.mark(), r.process()})
	}
	if !r.ok {
		return nil, errTold
	}
	return out, nil
}

// sealTold puts a checksum before b.
func sealTold(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli)), b...)
}

// appendName writes at most 255 bytes.
func appendName(b []byte, name string) []byte {
	name = name[:min(len(name), 255)]
	return append(append(b, byte(len(name))), name...)
}

func appendProcess(b []byte, p process) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, p.start), p.nonce)
}

func appendMark(b []byte, m mark) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, m.index), m.term)
}

func (r *metaReader) name() string {
	n := r.take(1)[0]
	if !r.ok {
		return ""
	}
	return string(r.take(int(n)))
}

func (r *metaReader) process() process { return process{r.u64(), r.u64()} }
func (r *metaReader) mark() mark       { return mark{r.u64(), r.u64()} }
