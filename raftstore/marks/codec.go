package marks

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
	magic   = "rowraftM"
	version = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// reader is a frame.Reader that also decodes the parts of marks.
type reader struct{ frame.Reader }

// encode returns the content of the file.
func (f *content) encode() []byte {
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
	return frame.Seal(magic, version, b)
}

// decode decodes the file. Errors: CodeCorrupt, CodeVersionTooNew.
func decode(raw []byte) (f content, err error) {
	body, err := frame.Open(raw, magic, version)
	if err != nil {
		return f, err
	}
	f = content{map[rowraft.NodeID]Process{}, map[string]map[rowraft.ReplicaID]Mark{}}
	r := reader{frame.NewReader(body)}
	for n := r.Uint32(); n > 0 && r.OK; n-- {
		node := rowraft.NodeID(r.name())
		f.nodes[node] = r.process()
	}
	for n := r.Uint32(); n > 0 && r.OK; n-- {
		group := r.name()
		f.groups[group] = map[rowraft.ReplicaID]Mark{}
		for m := r.Uint32(); m > 0 && r.OK; m-- {
			id := rowraft.ReplicaID(r.name())
			f.groups[group][id] = r.mark()
		}
	}
	if !r.End() {
		return content{}, rowraft.Errorf(rowraft.CodeCorrupt, "the marks do not add up")
	}
	return f, nil
}

// Statement is what each end of a peer connection sends before anything else: its process, and what it remembers of the
// other end.
type Statement struct {
	Self    Process
	About   Process           // last process seen of the receiver's server; zero: none
	Answers bool              // that process sent something a moment ago
	Replica rowraft.ReplicaID // the receiver's replica, by the sender's list of members; "": none
	Mark    Mark              // of that replica
}

func (s *Statement) Append(b []byte) []byte {
	b = appendProcess(appendProcess(b, s.Self), s.About)
	if s.Answers {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return appendMark(appendName(b, string(s.Replica)), s.Mark)
}

func (r *reader) statement() (s Statement) {
	s.Self, s.About = r.process(), r.process()
	switch r.Uint8() {
	case 0:
	case 1:
		s.Answers = true
	default:
		r.OK = false
	}
	s.Replica = rowraft.ReplicaID(r.name())
	s.Mark = r.mark()
	return s
}

// ParseStatement takes all of b.
func ParseStatement(b []byte) (Statement, error) {
	r := reader{frame.NewReader(b)}
	s := r.statement()
	if !r.End() {
		return Statement{}, errors.New("what the peer remembers does not add up")
	}
	return s, nil
}

// Member is what a leader sends its followers, in heartbeats, about one member of the group.
type Member struct {
	Replica rowraft.ReplicaID
	Node    rowraft.NodeID
	Mark    Mark
	Process Process
}

func AppendMember(b []byte, t Member) []byte {
	return appendProcess(appendMark(appendName(appendName(b, string(t.Replica)), string(t.Node)), t.Mark), t.Process)
}

var errMembers = errors.New("the marks in a heartbeat do not add up")

// DecodeMembers decodes what AppendMember and SealMembers wrote. Empty input is no error.
func DecodeMembers(b []byte) (out []Member, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < 4 || crc32.Checksum(b[4:], castagnoli) != binary.LittleEndian.Uint32(b) {
		return nil, errMembers
	}
	r := reader{frame.NewReader(b[4:])}
	for len(r.Rest) > 0 {
		out = append(out, Member{rowraft.ReplicaID(r.name()), rowraft.NodeID(r.name()), r.mark(), r.process()})
	}
	if !r.OK {
		return nil, errMembers
	}
	return out, nil
}

// SealMembers prepends a checksum to b.
func SealMembers(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli)), b...)
}

// appendName appends a name, cut to 255 bytes.
func appendName(b []byte, name string) []byte {
	name = name[:min(len(name), 255)]
	return append(append(b, byte(len(name))), name...)
}

func appendProcess(b []byte, p Process) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, p.Start), p.Nonce)
}

func appendMark(b []byte, m Mark) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, m.Index), m.Term)
}

func (r *reader) name() string {
	n := r.Uint8()
	if !r.OK {
		return ""
	}
	return string(r.Bytes(int(n)))
}

func (r *reader) process() Process { return Process{r.Uint64(), r.Uint64()} }
func (r *reader) mark() Mark       { return Mark{r.Uint64(), r.Uint64()} }
