package raftlog

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// metaState is one generation of a metaStore. The map may be shared with other generations, so it is never changed in
// place.
type metaState struct {
	generation uint64 // 0: none
	newest     uint64 // number of the log's newest segment; 0: none
	clean      bool   // all writes of the last process succeeded, and it closed the log
	owner      Owner
	stable     map[string]string
	intact     bool // both copies of its slot are good
}

// encode returns m as a frame.
func (m *metaState) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(nil, m.generation)
	b = le.AppendUint64(b, m.newest)
	b = append(b, flag(m.clean))
	b = append(b, m.owner.encode()...)
	b = le.AppendUint32(b, uint32(len(m.stable)))
	for _, k := range slices.Sorted(maps.Keys(m.stable)) {
		b = le.AppendUint16(b, uint16(len(k)))
		b = append(b, k...)
		b = le.AppendUint32(b, uint32(len(m.stable[k])))
		b = append(b, m.stable[k]...)
	}
	return frame.Seal(metaMagic, metaVersion, b)
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// decodeMeta decodes the frame at the beginning of b.
func decodeMeta(b []byte) (metaState, error) {
	bad := func(format string, args ...any) (metaState, error) {
		return metaState{}, rowraft.Errorf(rowraft.CodeCorrupt, "log metadata: "+format, args...)
	}
	if len(b) < frame.HeadBytes+frame.SumBytes || string(b[:len(metaMagic)]) != metaMagic {
		return bad("no magic")
	}
	n := uint64(binary.LittleEndian.Uint32(b[12:]))
	if n > uint64(len(b)-frame.HeadBytes-frame.SumBytes) {
		return bad("%d bytes of body do not fit", n)
	}
	body, err := frame.Open(b[:frame.HeadBytes+n+frame.SumBytes], metaMagic, metaVersion)
	if err != nil {
		return metaState{}, err
	}
	m, ok := decodeMetaBody(body)
	if !ok {
		return bad("the body does not add up")
	}
	return m, nil
}

func decodeMetaBody(b []byte) (m metaState, ok bool) {
	r := frame.NewReader(b)
	m.generation = r.Uint64()
	m.newest = r.Uint64()
	stop := r.Uint8()
	m.clean = stop == 1
	if m.owner, r.Rest, ok = parseOwner(r.Rest); !ok || !r.OK || stop > 1 {
		return m, false
	}
	keys := int(r.Uint32())
	var last []byte
	for i := range keys {
		k := r.Bytes(int(r.Uint16()))
		v := r.Bytes(int(r.Uint32()))
		if !r.OK || i > 0 && bytes.Compare(last, k) >= 0 {
			return m, false
		}
		if m.stable == nil {
			m.stable = map[string]string{}
		}
		m.stable[string(k)] = string(v)
		last = k
	}
	return m, r.End() && m.generation > 0
}
