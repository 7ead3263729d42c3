package checkpoint

import "github.com/rowraft/rowraft"

// MaxEnded is how many sessions that are over a shard remembers one by one.
const MaxEnded = 4096

const (
	endedFixed = 8
	endedSize  = 32

	chunkEnded chunkKind = 7 // after the sessions, if any has ended
)

// Ended is the record of the sessions that are over (docs/formats/entry.md, kind 2).
type Ended struct {
	// Floor is the index at which the last of those that List no longer holds ended; 0: List
	// holds all. No session is opened by a request with a ticket below it.
	Floor rowraft.Index
	List  []EndedSession // the newest, at most MaxEnded; ascending by Index
}

// EndedSession is the record of a session that is over.
type EndedSession struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	Index       rowraft.Index // of the entry that ended it
}

func appendEnded(dst []byte, e *Ended) []byte {
	dst = le.AppendUint64(dst, uint64(e.Floor))
	for _, s := range e.List {
		dst = append(dst, s.Client[:]...)
		dst = le.AppendUint64(dst, uint64(s.Incarnation))
		dst = le.AppendUint64(dst, uint64(s.Index))
	}
	return dst
}

// appendEnded writes a chunk if a session has ended.
func (w *Writer) appendEnded(e *Ended) error {
	if len(e.List) == 0 {
		return nil
	}
	w.begin(chunkEnded)
	w.buf = appendEnded(w.buf, e)
	return w.end()
}

// readEnded reads the chunk of n sessions that are over.
func (r *Reader) readEnded(n int) error {
	if n == 0 {
		return nil
	}
	b, err := r.section(chunkEnded, true)
	if err != nil {
		return err
	}
	if len(b) != endedFixed+n*endedSize {
		return r.corrupt("the header names %d sessions that are over, their chunk has %d bytes", n, len(b))
	}
	r.ended.Floor = rowraft.Index(le.Uint64(b))
	last := r.ended.Floor
	for b = b[endedFixed:]; len(b) > 0; b = b[endedSize:] {
		s := EndedSession{rowraft.ClientID(b[:16]), rowraft.Incarnation(le.Uint64(b[16:])), rowraft.Index(le.Uint64(b[24:]))}
		if s.Index <= last || s.Index > r.header.Applied || s.Incarnation == 0 {
			return r.corrupt("client %x: its session %d cannot have ended at index %d", s.Client[:4], s.Incarnation, s.Index)
		}
		last = s.Index
		r.ended.List = append(r.ended.List, s)
	}
	if r.ended.Floor > 0 && n < MaxEnded {
		return r.corrupt("sessions that are over were forgotten, and there are only %d", n)
	}
	return nil
}

// Ended returns the sessions that are over.
func (r *Reader) Ended() Ended { return r.ended }
