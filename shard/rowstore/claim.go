package rowstore

import (
	"runtime"

	"github.com/rowraft/rowraft"
)

// The writer and the reader of a snapshot must never be in the same slot. The writer stores its
// slot in Table.writing and then loads the slot of each reader. The reader stores its slot in
// Snapshot.reading and then loads the slot of the writer. So at least one of them sees the other.
// This requires that the writer's store is visible before its load. That costs the writer a full
// barrier per row, and the barrier waits until every image that the writer has saved is in memory.
//
// Where the system can make the other threads of a process execute a barrier (fenceOthers), the
// reader pays instead. It stores in Snapshot.nearPage the page of slots that it approaches, and
// fences. A claim of a slot on another page is loose: a plain store. The writer loads nearPage after
// that store. Either it sees the page and makes the claim strict as described above, or its claim
// was visible when the reader's fence returned, and the reader waits for the writer's next claim.
// The second fence is for the images that the writer saved under a loose claim: putImage writes
// them past the caches, so they are not ordered with the writer's later stores. A strict claim
// ends with a barrier of the writer.
//
// If the system cannot fence now, the reader requests strict claims and tries again. At its next
// change, when it holds no claim, the writer switches to strict claims and keeps them until no
// snapshot is left. With strict claims the reader needs no fence.

// looseClaim is set in Table.writing if the slot was claimed by a plain store.
const looseClaim = int64(1) << 32

// claim announces that the writer is in slot, until it claims another slot or calls done.
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
			s.slotMu.Lock()
			s.disturbed = true
			s.slotMu.Unlock()
		}
	}
}

// readerNear reports whether a snapshot reads the page of slot.
func (t *Table) readerNear(slot rowraft.Slot) bool {
	for _, s := range t.snaps {
		if s.nearPage.Load() == int32(slot/cutsPerPage)+1 {
			return true
		}
	}
	return false
}

// done ends the claim. Every function that changes rows calls it at its end.
func (t *Table) done() {
	if t.claimed != 0 {
		t.claimed, t.strict = 0, false
		t.writing.Store(0)
	}
}

// approach makes the writer's claims of slot, and of all slots on its page, strict.
func (s *Snapshot) approach(slot rowraft.Slot) {
	page := int32(slot/cutsPerPage) + 1
	if !s.t.loose.Load() || s.nearPage.Load() == page {
		return
	}
	s.nearPage.Store(page)
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

// fence makes the writer execute a barrier. It returns false if the writer's claims are strict.
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

// chooseClaims chooses between loose and strict claims. REQUIRES: the writer holds no claim. It is
// called before a snapshot begins and before a change.
func (t *Table) chooseClaims() {
	switch {
	case len(t.snaps) == 0:
		t.wantStrict.Store(false)
		t.loose.Store(canFence())
	case t.wantStrict.Load() && t.loose.Load():
		t.loose.Store(false)
	}
}

// enter locks slotMu when the writer is in another slot. Only the reader calls it.
// Until exit, the writer sets disturbed when it comes into slot, and it cannot come in
// while the reader holds slotMu.
func (s *Snapshot) enter(slot rowraft.Slot) {
	s.approach(slot)
	for {
		s.slotMu.Lock()
		s.reading.Store(int32(slot) + 1)
		if s.t.writing.Load() != int64(slot)+1 {
			s.disturbed = false
			return
		}
		s.reading.Store(0)
		s.slotMu.Unlock()
		runtime.Gosched()
	}
}

// exit unlocks slotMu. REQUIRES: the caller holds it.
func (s *Snapshot) exit() {
	s.reading.Store(0)
	s.slotMu.Unlock()
}
