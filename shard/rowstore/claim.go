package rowstore

import (
	"runtime"

	"github.com/rowraft/rowraft"
)

// Who is in which slot. The writer says in Table.writing where it is and then looks where
// the reader of a snapshot is; the reader says in Snapshot.reading where it is and then
// looks where the writer is: one of them sees the other. For that the writer's store
// must be seen before it looks, which costs it a full barrier a row, and the barrier
// waits until every image that it has kept is in memory.
//
// So where the system can make the other threads of a process pass a barrier (fenceOthers)
// the reader pays. It says in Snapshot.near to which page of slots it comes, and fences.
// A claim far from there is loose: a plain store. The writer looks at near behind it, so
// either it sees the page and claims the slot as above, strictly, or its claim was seen
// when the reader had fenced, and the reader waits for the next one. The second fence is
// for the images that were kept under a loose claim: these are written past the
// caches (putImage), and so are not in order with what the writer stores behind them. A
// strict claim ends with a barrier of the writer.
//
// If the system cannot fence now, the reader asks for strict claims and tries again. The writer
// makes all claims strict from its next change on, when it holds none, and until no snapshot
// is left; with that the reader needs no fence.

// looseClaim marks in Table.writing a slot that was claimed by a plain store.
const looseClaim = int64(1) << 32

// claim says that the writer comes into slot, until it claims another one or is done.
func (t *Table) claim(slot rowraft.Slot) {
	if t.claimed != int64(slot)+1 {
		t.claimNow(slot)
	}
}

func (t *Table) claimNow(slot rowraft.Slot) {
	t.claimed = int64(slot) + 1
	if t.loose.Load() {
		if t.strict {
			t.writing.Store(t.claimed | looseClaim)
		} else {
			storeClaim(&t.writing, t.claimed|looseClaim)
		}
		if t.strict = t.readerNear(slot); !t.strict {
			return
		}
	}
	t.writing.Store(t.claimed)
	for _, s := range t.snaps {
		if int64(s.reading.Load()) == t.claimed {
			s.gate.Lock()
			s.disturbed = true
			s.gate.Unlock()
		}
	}
}

// readerNear reports whether a snapshot is read near slot.
func (t *Table) readerNear(slot rowraft.Slot) bool {
	for _, s := range t.snaps {
		if s.near.Load() == int32(slot/cutsPerPage)+1 {
			return true
		}
	}
	return false
}

// done ends the claim of whoever changed rows.
func (t *Table) done() {
	if t.claimed != 0 {
		t.claimed, t.strict = 0, false
		t.writing.Store(0)
	}
}

// comeNear has the writer claim slot, and those of the same page, strictly.
func (s *Snapshot) comeNear(slot rowraft.Slot) {
	page := int32(slot/cutsPerPage) + 1
	if !s.t.loose.Load() || s.near.Load() == page {
		return
	}
	s.near.Store(page)
	for {
		if !s.t.fence() {
			return
		}
		w := s.t.writing.Load()
		if w&looseClaim == 0 || int32((w&^looseClaim-1)/cutsPerPage)+1 != page {
			break
		}
		runtime.Gosched()
	}
	s.t.fence()
}

// fence makes the writer pass a barrier, and returns false if its claims are strict instead.
func (t *Table) fence() bool {
	for !fenceOthers() {
		t.wantStrict.Store(true)
		if !t.loose.Load() {
			return false
		}
		pauseFence()
	}
	return true
}

// mayLoosen is called where no claim is held: before a snapshot begins, and before a change.
func (t *Table) mayLoosen() {
	switch {
	case len(t.snaps) == 0:
		t.wantStrict.Store(false)
		t.loose.Store(canFence())
	case t.wantStrict.Load() && t.loose.Load():
		t.loose.Store(false)
	}
}

// enter takes the gate of slot when the writer is somewhere else; it is the reader's.
// Until exit the writer tells when it comes into the slot, and while the gate is held
// it stays out.
func (s *Snapshot) enter(slot rowraft.Slot) {
	s.comeNear(slot)
	for {
		s.gate.Lock()
		s.reading.Store(int32(slot) + 1)
		if s.t.writing.Load() != int64(slot)+1 {
			s.disturbed = false
			return
		}
		s.reading.Store(0)
		s.gate.Unlock()
		runtime.Gosched()
	}
}

// exit gives the gate up. REQUIRES: it is held.
func (s *Snapshot) exit() {
	s.reading.Store(0)
	s.gate.Unlock()
}
