package raftstore

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/rowraft/rowraft"
)

// metaState is one generation of a metaStore. Values that refer to the same
// memory are never written through.
type metaState struct {
	generation uint64 // 0: none
	newest     uint64 // segment of the log, 0: none
	clean      bool   // all writes of the last process succeeded, and it closed the log
	owner      logOwner
	stable     map[string]string
	intact     bool // both copies of it are good
}

// encode returns the frame of m.
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
	return sealFrame(metaMagic, metaVersion, b)
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// decodeMeta reads the frame at the beginning of b.
func decodeMeta(b []byte) (metaState, error) {
	bad := func(format string, args ...any) (metaState, error) {
		return metaState{}, rowraft.Errorf(rowraft.CodeCorrupt, "log metadata: "+format, args...)
	}
	if len(b) < snapHeader+4 || string(b[:len(metaMagic)]) != metaMagic {
		return bad("no magic")
	}
	n := uint64(binary.LittleEndian.Uint32(b[12:]))
	if n > uint64(len(b)-snapHeader-4) {
		return bad("%d bytes of body do not fit", n)
	}
	body, err := openFrame(b[:snapHeader+n+4], metaMagic, metaVersion)
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
	r := metaReader{b: b, ok: true}
	m.generation = r.u64()
	m.newest = r.u64()
	stop := r.take(1)[0]
	m.clean = stop == 1
	if m.owner, r.b, ok = parseLogOwner(r.b); !ok || !r.ok || stop > 1 {
		return m, false
	}
	keys := int(r.u32())
	var last []byte
	for i := range keys {
		k := r.take(int(r.u16()))
		v := r.take(int(r.u32()))
		if !r.ok || i > 0 && bytes.Compare(last, k) >= 0 {
			return m, false
		}
		if m.stable == nil {
			m.stable = map[string]string{}
		}
		m.stable[string(k)] = string(v)
		last = k
	}
	return m, r.ok && len(r.b) == 0 && m.generation > 0
}

// metaReader takes numbers off the front of b; ok says that they were all there.
type metaReader struct {
	b  []byte
	ok bool
}

func (r *metaReader) take(n int) []byte {
	if n < 0 || n > len(r.b) || n > math.MaxInt32 {
		r.ok, r.b = false, nil
		return make([]byte, min(max(n, 0), 8))
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *metaReader) u16() uint16 { return binary.LittleEndian.Uint16(r.take(2)) }
func (r *metaReader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *metaReader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
