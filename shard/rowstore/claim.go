package rowstore

import (
	"runtime"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// The writer and the reader of a snapshot must never be in the same slot. The writer stores its
// slot in snapshots.writing and then loads the slot of each reader. The reader stores its slot in
// Snapshot.reading and then loads the slot of the writer. So at least one of them sees the other.
// This requires that the writer's store is visible before its load. That costs the writer a full
// barrier per row, and the barrier waits until every image that the writer has saved is in memory.
//
// Where the system can make the other threads of a process execute a barrier (order.FenceOthers), the
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

// looseClaim is set in snapshots.writing if the slot was claimed by a plain store.
const looseClaim = int64(1) << 32

// snapshots are the running snapshots of a table and the claims of the writer. The writer owns the fields that are not
// atomic; readers of a snapshot load the others.
//
// Invariant: the writer changes a slot only while claimed is 1 + that slot, or while running is empty.
type snapshots struct {
	index   *index
	running []*Snapshot

	writing    atomic.Int64 // 1 + the slot that the writer is in, perhaps with looseClaim; 0: none or no snapshots
	claimed    int64        // the writer's copy of writing, without looseClaim
	loose      atomic.Bool  // loose claims are allowed; only the writer stores it
	wantStrict atomic.Bool  // a reader could not fence and needs strict claims
	strict     bool         // the claim of claimed is strict although loose claims are allowed

	outgrown []segment // segments that no slot has any more and a snapshot still walks
}

// beginChange begins a call of the writer. done ends it.
func (ss *snapshots) beginChange() {
	if ss.wantStrict.Load() {
		ss.chooseClaims()
	}
}

// claim announces that the writer is in slot, until it claims another slot or calls done.
func (ss *snapshots) claim(slot rowraft.Slot) {
	if ss.claimed != int64(slot)+1 {
		ss.claimNow(slot)
	}
}

func (ss *snapshots) claimNow(slot rowraft.Slot) {
	ss.claimed = int64(slot) + 1
	if ss.loose.Load() {
		if ss.strict {
			ss.writing.Store(ss.claimed | looseClaim)
		} else {
			order.StoreUnfenced(&ss.writing, ss.claimed|looseClaim)
		}
		if ss.strict = ss.readerNear(slot); !ss.strict {
			return
		}
	}
	ss.writing.Store(ss.claimed)
	for _, s := range ss.running {
		if int64(s.reading.Load()) == ss.claimed {
			s.slotMu.Lock()
			s.disturbed = true
			s.slotMu.Unlock()
		}
	}
}

// readerNear reports whether a snapshot reads the page of slot.
func (ss *snapshots) readerNear(slot rowraft.Slot) bool {
	for _, s := range ss.running {
		if s.nearPage.Load() == int32(slot/cutsPerPage)+1 {
			return true
		}
	}
	return false
}

// done ends the claim. Every function that changes rows calls it at its end.
func (ss *snapshots) done() {
	if ss.claimed != 0 {
		ss.claimed, ss.strict = 0, false
		ss.writing.Store(0)
	}
}

// approach makes the writer's claims of slot, and of all slots on its page, strict.
func (s *Snapshot) approach(slot rowraft.Slot) {
	page := int32(slot/cutsPerPage) + 1
	if !s.t.snaps.loose.Load() || s.nearPage.Load() == page {
		return
	}
	s.nearPage.Store(page)
	for {
		if !s.t.snaps.fence() {
			return
		}
		w := s.t.snaps.writing.Load()
		if w&looseClaim == 0 || int32((w&^looseClaim-1)/cutsPerPage)+1 != page {
			break
		}
		runtime.Gosched()
	}
	s.t.snaps.fence()
}

// fence makes the writer execute a barrier. It returns false if the writer's claims are strict.
func (ss *snapshots) fence() bool {
	for !order.FenceOthers() {
		ss.wantStrict.Store(true)
		if !ss.loose.Load() {
			return false
		}
		order.PauseFence()
	}
	return true
}

// chooseClaims chooses between loose and strict claims. REQUIRES: the writer holds no claim. It is
// called before a snapshot begins and before a change.
func (ss *snapshots) chooseClaims() {
	switch {
	case len(ss.running) == 0:
		ss.wantStrict.Store(false)
		ss.loose.Store(order.CanFence())
	case ss.wantStrict.Load() && ss.loose.Load():
		ss.loose.Store(false)
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
		if s.t.snaps.writing.Load() != int64(slot)+1 {
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
