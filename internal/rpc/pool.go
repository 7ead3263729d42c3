package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is the process-wide pool of payload and transport buffers.
var Pool = new(BufferPool)

// BufferPool provides buffers of power-of-two capacity without zeroing them. It implements mem.BufferPool.
// Safe for concurrent use.
type BufferPool struct {
	classes [maxClass - minClass + 1]sync.Pool // of *[]byte
}

// Smallest and largest pooled capacity, as powers of two: 1 KiB and 64 MiB.
const minClass, maxClass = 10, 26

var _ mem.BufferPool = (*BufferPool)(nil)

// Get returns a buffer of length n with undefined contents, 8-byte aligned.
func (p *BufferPool) Get(n int) *[]byte {
	c := max(bits.Len(uint(max(n, 1)-1)), minClass)
	if c > maxClass {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.classes[c-minClass].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<c)
	return &b
}

// Put returns a buffer to the pool. It drops buffers that did not come from Get.
func (p *BufferPool) Put(b *[]byte) {
	c := cap(*b)
	if k := bits.Len(uint(c)) - 1; c > 0 && c == 1<<k && k >= minClass && k <= maxClass {
		p.classes[k-minClass].Put(b)
	}
}

// Bytes is Get for callers that need a plain slice.
func (p *BufferPool) Bytes(n int) []byte { return *p.Get(n) }

// Release returns a slice to the pool. The slice must start at the start of a buffer from Get. The caller
// must not use it afterwards.
func (p *BufferPool) Release(b []byte) {
	if cap(b) >= 1<<minClass {
		p.Put(&b)
	}
}
