package raftstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// Encodings of the file of marks (docs/formats/marks.md) and of the marks in peer messages (docs/formats/peer.md).
const (
	marksMagic   = "rowraftM"
	marksVersion = 1
)

// marksReader is a frame.Reader that also decodes the parts of marks.
type marksReader struct{ frame.Reader }

// encode returns the content of the file.
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
	return frame.Seal(marksMagic, marksVersion, b)
}

// decodeMarks decodes the file. Errors: CodeCorrupt, CodeVersionTooNew.
func decodeMarks(raw []byte) (f marksFile, err error) {
	body, err := frame.Open(raw, marksMagic, marksVersion)
	if err != nil {
		return f, err
	}
	f = marksFile{map[rowraft.NodeID]process{}, map[string]map[rowraft.ReplicaID]mark{}}
	r := marksReader{frame.NewReader(body)}
	for n := r.Uint32(); n > 0 && r.OK; n-- {
		node := rowraft.NodeID(r.name())
		f.nodes[node] = r.process()
	}
	for n := r.Uint32(); n > 0 && r.OK; n-- {
		group := r.name()
		f.groups[group] = map[rowraft.ReplicaID]mark{}
		for m := r.Uint32(); m > 0 && r.OK; m-- {
			id := rowraft.ReplicaID(r.name())
			f.groups[group][id] = r.mark()
		}
	}
	if !r.End() {
		return marksFile{}, rowraft.Errorf(rowraft.CodeCorrupt, "the marks do not add up")
	}
	return f, nil
}

// statement is what each end of a peer connection sends before anything else: its process, and what it remembers of the
// other end.
type statement struct {
	self    process
	about   process           // last process seen of the receiver's server; zero: none
	answers bool              // that process sent something a moment ago
	replica rowraft.ReplicaID // the receiver's replica, by the sender's list of members; "": none
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

func (r *marksReader) statement() (s statement) {
	s.self, s.about = r.process(), r.process()
	switch r.Uint8() {
	case 0:
	case 1:
		s.answers = true
	default:
		r.OK = false
	}
	s.replica = rowraft.ReplicaID(r.name())
	s.mark = r.mark()
	return s
}

// told is what a leader sends its followers, in heartbeats, about one member of the group.
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

// decodeTold decodes what appendTold and sealTold wrote. Empty input is no error.
func decodeTold(b []byte) (out []told, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < 4 || crc32.Checksum(b[4:], castagnoli) != binary.LittleEndian.Uint32(b) {
		return nil, errTold
	}
	r := marksReader{frame.NewReader(b[4:])}
	for len(r.Rest) > 0 {
		out = append(out, told{rowraft.ReplicaID(r.name()), rowraft.NodeID(r.name()), r.mark(), r.process()})
	}
	if !r.OK {
		return nil, errTold
	}
	return out, nil
}

// sealTold prepends a checksum to b.
func sealTold(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli)), b...)
}

// appendName appends a name, cut to 255 bytes.
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

func (r *marksReader) name() string {
	n := r.Uint8()
	if !r.OK {
		return ""
	}
	return string(r.Bytes(int(n)))
}

func (r *marksReader) process() process { return process{r.Uint64(), r.Uint64()} }
func (r *marksReader) mark() mark       { return mark{r.Uint64(), r.Uint64()} }
