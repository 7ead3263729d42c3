package rowstore

import (
	"math"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// floats returns len(dst) numbers of b as float32. It converts them into dst, or returns b itself
// if that needs no copy.
func floats(b []byte, dt rowraft.DType, dst []float32) []float32 {
	if dt == rowraft.BFloat16 {
		wire.GetFloats(dst, dt, b[:2*len(dst)])
		return dst
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%4 == 0 {
		return unsafe.Slice((*float32)(p), len(dst))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)), b)
	return dst
}

// convert writes len(dst)/to.Size() numbers of src, of type from, to dst as type to. src may have
// padding at its end.
func convert(dst []byte, to rowraft.DType, src []byte, from rowraft.DType) {
	switch {
	case from == to:
		copy(dst, src)
	case from == rowraft.BFloat16:
		wire.Widen(dst, src)
	default:
		wire.PutFloats(dst, to, unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src))), len(dst)/2))
	}
}

// roundAll rounds numbers to the nearest bfloat16.
func roundAll(v []float32) {
	for i := range v {
		v[i] = math.Float32frombits(uint32(wire.BFloat16(v[i])) << 16)
	}
}
