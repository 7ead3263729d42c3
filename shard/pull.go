package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// MaxPullBytes is the largest reply of one pull.
const MaxPullBytes = 64 << 20

// Pull reads the weights of keys.
//
// payload is segments with exactly FlagNoValues; keys may repeat
// and come in any order. The reply has one segment for each of them, in the same order,
// with FlagNoKeys and, if presence is set, FlagPresence: one bit for each key, set if the key has
// a row. Values have the dtype that the segment requests. A key never
// pushed reads as the initializer and is not created.
//
// Pull calls alloc(size) once and writes the reply into its result: size bytes, which
// need not be zero. If alloc returns nil there is no memory, and Pull ends. Each row is whole and
// reflects the returned index or a later one. Pull keeps neither buffer. Safe for concurrent use.
//
// Errors: CodeInvalidArgument, CodeTableNotFound, CodeWrongShard; CodeStarting
// if a snapshot was restored during the pull; CodeClosing; CodeOverloaded if alloc returned nil.
// On an error the caller frees the buffer that alloc returned.
func (m *Machine) Pull(
	payload []byte, presence bool, alloc func(size int) []byte,
) (reply []byte, applied rowraft.Index, err error) {
	size, err := m.ReplySize(payload, presence)
	if err != nil {
		return nil, 0, err
	}
	m.readers.RLock() // a restore replaces state and index together, and so the pull reads them together
	st := m.view.Load().state
	applied = m.AppliedIndex()
	m.readers.RUnlock()
	if reply = alloc(size); reply == nil {
		return nil, 0, rowraft.Errorf(rowraft.CodeOverloaded,
			"shard %d: no memory for a reply of %d bytes: try again later", m.shard, size)
	}
	reply = reply[:size]
	out := reply
	for len(payload) > 0 {
		ask, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return nil, 0, err
		}
		payload = rest
		give := replySegment(ask, presence)
		n := give.Size()
		if err := m.pullSegment(st, give, body, give.Put(out[:n:n])); err != nil {
			return nil, 0, err
		}
		out = out[n:]
	}
	return reply, applied, nil
}

// replySegment returns the segment that replies to ask.
func replySegment(ask wire.Segment, presence bool) wire.Segment {
	ask.Flags = wire.FlagNoKeys
	if presence {
		ask.Flags |= wire.FlagPresence
	}
	return ask
}

// ReplySize checks a pull and returns the size of its reply in bytes. Errors as in Pull.
func (m *Machine) ReplySize(payload []byte, presence bool) (int, error) {
	size := 0
	for keys := 0; len(payload) > 0; {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return 0, err
		}
		payload = rest
		t, err := m.find(seg.Table)
		if err != nil {
			return 0, err
		}
		if seg.Flags != wire.FlagNoValues {
			return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: segment flags %#x: a pull has only keys, flags %#x",
				t.schema.Name, seg.Flags, wire.FlagNoValues)
		}
		if err := t.checkDim(seg); err != nil {
			return 0, err
		}
		if keys += seg.N; keys > rowraft.MaxKeysPerPart {
			return 0, tooManyKeys(keys)
		}
		if size += replySegment(seg, presence).Size(); size > MaxPullBytes {
			return 0, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"the reply of one pull is larger than %d bytes, the limit: request fewer keys", MaxPullBytes)
		}
		if err := m.checkSlots(t, body); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// pullSegment fills out with the rows of ask's keys. It holds m.readers for chunkRows at a time, so that
// a restore can take it in between.
func (m *Machine) pullSegment(st *state, seg wire.Segment, ask, out wire.Body) error {
	var scratch [chunkRows]rowraft.Key
	rowBytes := seg.Dim * seg.DType.Size()
	for from := 0; from < seg.N; from += chunkRows {
		to := min(from+chunkRows, seg.N)
		keys := wire.Keys(scratch[:], ask.Keys[8*from:8*to])
		var present []byte
		if len(out.Presence) > 0 {
			present = out.Presence[from/8 : (to+7)/8]
		}
		if err := m.pullChunk(st, seg, keys, out.Values[from*rowBytes:to*rowBytes], present); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) pullChunk(st *state, seg wire.Segment, keys []rowraft.Key, values, present []byte) error {
	m.readers.RLock()
	defer m.readers.RUnlock()
	v := m.view.Load()
	if v.err != nil {
		return v.err
	}
	if v.state != st {
		return rowraft.Errorf(rowraft.CodeStarting, "shard %d restored a snapshot during the read: try again", m.shard)
	}
	t := v.table(seg.Table)
	if t == nil {
		return m.notFound(seg.Table)
	}
	return t.rows.Pull(keys, values, seg.DType, present)
}
