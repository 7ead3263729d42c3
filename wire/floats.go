package wire

import (
	"math"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// littleEndian reports whether a []float32 in memory has the byte order of the wire.
var littleEndian = func() bool { x := uint16(1); return *(*byte)(unsafe.Pointer(&x)) == 1 }()

// float32Bytes returns the memory of f.
func float32Bytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}

// PutFloats writes src as dtype; dst has len(src)·dtype.Size() bytes. bfloat16
// rounds to nearest, ties to even.
func PutFloats(dst []byte, dtype rowraft.DType, src []float32) {
	switch {
	case dtype == rowraft.BFloat16:
		round(dst, src)
	case littleEndian:
		copy(dst, float32Bytes(src))
	default:
		for i, v := range src {
			le.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	}
}

// GetFloats reads len(dst) numbers of dtype from src.
func GetFloats(dst []float32, dtype rowraft.DType, src []byte) {
	switch {
	case dtype == rowraft.BFloat16:
		if littleEndian {
			Widen(float32Bytes(dst), src)
			return
		}
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(le.Uint16(src[2*i:])) << 16)
		}
	case littleEndian:
		copy(float32Bytes(dst), src[:4*len(dst)])
	default:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
		}
	}
}

// InPlace returns the numbers of src in its own memory, or nil if dtype, the alignment of src or the machine's byte
// order do not allow that.
func InPlace(dtype rowraft.DType, src []byte) []float32 {
	if p := unsafe.Pointer(unsafe.SliceData(src)); dtype == rowraft.Float32 && littleEndian && uintptr(p)%4 == 0 {
		return unsafe.Slice((*float32)(p), len(src)/4)
	}
	return nil
}

// Floats returns len(scratch) numbers of dtype from src: InPlace, or a copy in scratch.
func Floats(scratch []float32, dtype rowraft.DType, src []byte) []float32 {
	if in := InPlace(dtype, src); in != nil {
		return in[:len(scratch)]
	}
	GetFloats(scratch, dtype, src)
	return scratch
}

// Widen reads len(dst)/4 numbers of bfloat16 from src and writes them as float32.
func Widen(dst, src []byte) {
	for i := widenMany(dst, src); i < len(dst)/4; i++ {
		le.PutUint32(dst[4*i:], uint32(le.Uint16(src[2*i:]))<<16)
	}
}

// round writes src to dst as bfloat16.
func round(dst []byte, src []float32) {
	i := roundMany(dst, src)
	for ; len(src)-i >= 2; i += 2 { // two numbers, one store
		le.PutUint32(dst[2*i:], uint32(BFloat16(src[i]))|uint32(BFloat16(src[i+1]))<<16)
	}
	if i < len(src) {
		le.PutUint16(dst[2*i:], BFloat16(src[i]))
	}
}

// BFloat16 returns the upper half of v, rounded to nearest even. A NaN stays a NaN.
func BFloat16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // a quiet NaN: rounding cannot turn it into infinity
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// Convert writes len(dst)/to.Size() numbers of src, of type from, to dst as type to. src may have
// padding at its end.
func Convert(dst []byte, to rowraft.DType, src []byte, from rowraft.DType) {
	switch {
	case from == to:
		copy(dst, src)
	case from == rowraft.BFloat16:
		Widen(dst, src)
	default:
		PutFloats(dst, to, unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src))), len(dst)/2))
	}
}

// RoundTo rounds numbers to the nearest ones of type to.
func RoundTo(to rowraft.DType, v []float32) {
	if to != rowraft.BFloat16 {
		return
	}
	for i := range v {
		v[i] = math.Float32frombits(uint32(BFloat16(v[i])) << 16)
	}
}
