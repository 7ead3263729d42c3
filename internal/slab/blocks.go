package slab

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
)

const (
	minBlockWords = 16 // 128 bytes, two cache lines
	leafBytes     = minBlockWords * 8
	maxOrder      = 14 // a chunk: leafBytes << maxOrder = chunkBytes
	chunkLeaves   = 1 << maxOrder
)

// Blocks allocates blocks of a power of two words with the buddy method: the two halves of a split block
// are joined again when both are free, so that the segments that an index outgrows become its larger
// segments. Blocks of more than a chunk have a mapping of their own.
//
// A leaf is numbered across chunks: chunk·chunkLeaves + leaf within the chunk. A free block stores its list
// links in its first 8 bytes.
type Blocks struct {
	chunks []chunk
	first  int                    // bytes of the first chunk that are in use
	number map[uintptr]uint32     // of the chunk at an address
	heads  [maxOrder + 1]uint32   // 1 + leaf of the first free block of an order; 0 = none
	large  map[unsafe.Pointer]int // sizes of the blocks with a mapping of their own

	mapped, used atomic.Int64 // Stats
}

// chunk is one chunk of leaves. state has an element for each leaf in use: 1 + the order of the free block that starts
// there, or 0.
type chunk struct {
	base  unsafe.Pointer
	state []uint8
}

// links is the head of a free block: 1 + leaf of its neighbours in the list.
type links struct{ next, prev uint32 }

// Alloc returns n zeroed words; n must be a power of two and at least 16.
//
// Errors: CodeOverloaded if the system has no memory.
func (b *Blocks) Alloc(n int) ([]uint64, error) {
	if n < minBlockWords || n&(n-1) != 0 {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "block of %d words: want a power of two, at least %d",
			n, minBlockWords)
	}
	order := bits.TrailingZeros(uint(n / minBlockWords))
	if order > maxOrder {
		return b.allocLarge(n)
	}
	from := b.smallestFree(order)
	for ; from > maxOrder; from = b.smallestFree(order) {
		if err := b.addMemory(); err != nil {
			return nil, err
		}
	}
	leaf := b.heads[from] - 1
	b.unlink(leaf, from)
	for from > order {
		from--
		b.link(leaf+1<<from, from)
	}
	words := unsafe.Slice((*uint64)(b.at(leaf)), n)
	clear(words)
	b.used.Add(int64(n) * 8)
	return words, nil
}

// Free frees words, which Alloc returned.
func (b *Blocks) Free(words []uint64) {
	if poison {
		for i := range words {
			words[i] = 0xDBDBDBDBDBDBDBDB
		}
	}
	b.used.Add(-int64(len(words)) * 8)
	p := unsafe.Pointer(unsafe.SliceData(words))
	if _, ok := b.large[p]; ok {
		delete(b.large, p)
		b.mapped.Add(-int64(len(words)) * 8)
		if err := release(p, len(words)*8); err != nil {
			panic("slab: " + err.Error())
		}
		return
	}
	b.join(b.leafOf(p), bits.TrailingZeros(uint(len(words)/minBlockWords)))
}

// smallestFree returns the lowest order from order on that has a free block, above maxOrder if there is none.
func (b *Blocks) smallestFree(order int) int {
	for order <= maxOrder && b.heads[order] == 0 {
		order++
	}
	return order
}

// join adds the block at leaf to the free ones, as a part of the largest block that is free then.
func (b *Blocks) join(leaf uint32, order int) {
	for order < maxOrder {
		buddy := leaf ^ 1<<order
		if b.freeOrder(buddy) != order {
			break
		}
		b.unlink(buddy, order)
		leaf &^= 1 << order
		order++
	}
	b.link(leaf, order)
}

// Stats returns the memory in use. It may run concurrently with everything except Close.
func (b *Blocks) Stats() Stats {
	return Stats{MappedBytes: b.mapped.Load(), UsedBytes: b.used.Load()}
}

// Close frees all memory. b is empty afterwards and may be used again.
func (b *Blocks) Close() error {
	var err error
	bases := make([]unsafe.Pointer, len(b.chunks))
	for i := range bases {
		bases[i] = b.chunks[i].base
	}
	if len(bases) > 0 {
		err = shared.giveFirst(bases[0])
		if e := shared.give(bases[1:], false); err == nil {
			err = e
		}
	}
	for p, n := range b.large {
		if e := release(p, n); err == nil {
			err = e
		}
	}
	b.chunks, b.first, b.number, b.heads, b.large = nil, 0, nil, [maxOrder + 1]uint32{}, nil
	b.mapped.Store(0)
	b.used.Store(0)
	return err
}

func (b *Blocks) allocLarge(n int) ([]uint64, error) {
	p, err := reserve(n * 8)
	if err != nil {
		return nil, err
	}
	if b.large == nil {
		b.large = make(map[unsafe.Pointer]int)
	}
	b.large[p] = n * 8
	b.mapped.Add(int64(n) * 8)
	b.used.Add(int64(n) * 8)
	return unsafe.Slice((*uint64)(p), n), nil
}

// addMemory adds the next part of the first chunk, or a whole chunk once all of that is in use.
func (b *Blocks) addMemory() error {
	if len(b.chunks) == 0 {
		base, err := shared.takeFirst()
		if err != nil {
			return err
		}
		b.addChunk(base, 0)
	}
	if b.first < chunkBytes {
		first, leaf, more := &b.chunks[0], uint32(b.first/leafBytes), firstStep(b.first)
		first.state = append(first.state, make([]uint8, more/leafBytes)...)
		b.first += more
		b.mapped.Add(int64(more))
		b.join(leaf, bits.TrailingZeros(uint(more/leafBytes)))
		return nil
	}
	base, err := shared.take(forIndex)
	if err != nil {
		return err
	}
	b.addChunk(base, chunkLeaves)
	b.mapped.Add(chunkBytes)
	b.link(uint32(len(b.chunks)-1)<<maxOrder, maxOrder)
	return nil
}

// addChunk adds the chunk at base, of which the given number of leaves are in use.
func (b *Blocks) addChunk(base unsafe.Pointer, leaves int) {
	if b.number == nil {
		b.number = make(map[uintptr]uint32)
	}
	b.number[uintptr(base)] = uint32(len(b.chunks))
	b.chunks = append(b.chunks, chunk{base: base, state: make([]uint8, leaves)})
}

func (b *Blocks) at(leaf uint32) unsafe.Pointer {
	return unsafe.Add(b.chunks[leaf>>maxOrder].base, uintptr(leaf&(chunkLeaves-1))*leafBytes)
}

// stateOf returns the state of a leaf in use.
func (b *Blocks) stateOf(leaf uint32) *uint8 {
	return &b.chunks[leaf>>maxOrder].state[leaf&(chunkLeaves-1)]
}

// freeOrder returns the order of the free block that starts at leaf, or -1 if there is none.
func (b *Blocks) freeOrder(leaf uint32) int {
	c := &b.chunks[leaf>>maxOrder]
	if within := int(leaf & (chunkLeaves - 1)); within < len(c.state) {
		return int(c.state[within]) - 1
	}
	return -1
}

// leafOf is the inverse of at.
func (b *Blocks) leafOf(p unsafe.Pointer) uint32 {
	within := uintptr(p) & (chunkBytes - 1)
	i, ok := b.number[uintptr(p)-within]
	if !ok {
		panic("slab: a block was freed that was not allocated here")
	}
	return i<<maxOrder + uint32(within/leafBytes)
}

func (b *Blocks) link(leaf uint32, order int) {
	head := b.heads[order]
	*(*links)(b.at(leaf)) = links{next: head}
	if head != 0 {
		(*links)(b.at(head - 1)).prev = leaf + 1
	}
	b.heads[order] = leaf + 1
	*b.stateOf(leaf) = uint8(order + 1)
}

func (b *Blocks) unlink(leaf uint32, order int) {
	l := *(*links)(b.at(leaf))
	if l.prev != 0 {
		(*links)(b.at(l.prev - 1)).next = l.next
	} else {
		b.heads[order] = l.next
	}
	if l.next != 0 {
		(*links)(b.at(l.next - 1)).prev = l.prev
	}
	*b.stateOf(leaf) = 0
}
