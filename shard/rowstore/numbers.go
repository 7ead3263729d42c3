package rowstore

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// floats reads n numbers of b into dst, or returns b itself as float32 where
// that needs no copy.
func floats(b []byte, dt rowraft.DType, dst []float32) []float32 {
	if dt == rowraft.BFloat16 {
		b = b[:2*len(dst)]
		wide := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst))
		for i := widenMany(wide, b); i < len(dst); i++ {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
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

// convert writes the numbers of src, of type from and perhaps padded, to dst as
// type to; dst tells how many.
func convert(dst []byte, to rowraft.DType, src []byte, from rowraft.DType) {
	switch {
	case from == to:
		copy(dst, src)
	case from == rowraft.BFloat16:
		for i := widenMany(dst, src); i < len(dst)/4; i++ {
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(binary.LittleEndian.Uint16(src[2*i:]))<<16)
		}
	default:
		putFloats(dst, to, unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src))), len(dst)/2))
	}
}

// roundAll rounds numbers to what they would be as bfloat16.
func roundAll(v []float32) {
	for i := range v {
		v[i] = math.Float32frombits(uint32(bfloat16(v[i])) << 16)
	}
}

// putFloats writes src to dst as dt.
func putFloats(dst []byte, dt rowraft.DType, src []float32) {
	if dt == rowraft.BFloat16 {
		i := roundMany(dst, src)
		for ; len(src)-i >= 2; i += 2 { // two numbers, one store
			two := uint32(bfloat16(src[i])) | uint32(bfloat16(src[i+1]))<<16
			binary.LittleEndian.PutUint32(dst[2*i:], two)
		}
		if i < len(src) {
			binary.LittleEndian.PutUint16(dst[2*i:], bfloat16(src[i]))
		}
		return
	}
	copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src)))
}

// bfloat16 rounds v to nearest, ties to even. A NaN stays one.
func bfloat16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7FFFFFFF > 0x7F800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7FFF + b>>16&1) >> 16)
}
