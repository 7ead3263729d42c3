package slab

import (
	"unsafe"

	"github.com/rowraft/rowraft"
)

// hugePage is the size of a transparent huge page on amd64 and arm64; regions
// start at a multiple of it.
const hugePage = 2 << 20

// region is a reserved range of addresses of which the first committed bytes
// are usable. The memory is zero when first touched.
type region struct {
	base      unsafe.Pointer
	reserved  int
	committed int
}

// commit makes at least the first n bytes usable and returns how many became so.
//
// The first huge page is committed in doubling steps and not advised to be
// huge: most tables of a node are large, but a bias or a small tensor should
// cost kilobytes.
func (r *region) commit(n int) (more int, err error) {
	if n <= r.committed {
		return 0, nil
	}
	want := max(r.committed*2, 64<<10)
	for want < n && want < hugePage {
		want *= 2
	}
	if n > hugePage || want > hugePage {
		want = (max(n, r.committed+1) + hugePage - 1) &^ (hugePage - 1)
	}
	want = min(want, r.reserved)
	if err := r.enable(r.committed, want); err != nil {
		return 0, rowraft.Errorf(rowraft.CodeOverloaded, "row memory: map %d more bytes: %w", want-r.committed, err)
	}
	more = want - r.committed
	r.committed = want
	return more, nil
}
