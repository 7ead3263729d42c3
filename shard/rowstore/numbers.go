package rowstore

import (
	"math"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// floats reads n numbers of b into dst, or returns b itself as float32 where
// that needs no copy.
func floats(b []byte, dt rowraft.DType, dst []float32) []float32 {
	if dt == rowraft.BFloat16 {
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(b[2*i])<<16 | uint32(b[2*i+1])<<24)
		}
		return dst
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%4 == 0 {
		return unsafe.Slice((*float32)(p), len(dst))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)), b)
	return dst
}

// putFloats writes src to dst as dt.
func putFloats(dst []byte, dt rowraft.DType, src []float32) {
	if dt == rowraft.BFloat16 {
		for i, v := range src {
			h := bfloat16(v)
			dst[2*i] = byte(h)
			dst[2*i+1] = byte(h >> 8)
		}
		return
	}
	copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src)))
}

// bfloat16 rounds v to nearest, ties to even. A NaN stays one.
func bfloat16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7FFF + b>>16&1) >> 16)
}
