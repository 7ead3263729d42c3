package tablefile

import (
	"encoding/binary"
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

var le = binary.LittleEndian

// number is a number type of a file format, little-endian.
type number uint8

const (
	f32 number = iota + 1
	bf16
	f16
	f64
)

func (n number) size() int {
	switch n {
	case f16, bf16:
		return 2
	case f64:
		return 8
	}
	return 4
}

func (n number) String() string {
	return map[number]string{f32: "float32", bf16: "bfloat16", f16: "float16", f64: "float64"}[n]
}

// dtype returns the narrowest dtype of tables that represents every number of type n.
func (n number) dtype() rowraft.DType {
	if n == bf16 {
		return rowraft.BFloat16
	}
	return rowraft.Float32
}

// get reads len(dst) numbers from src. It rounds a float64 to nearest even, to infinity if it is beyond float32.
func (n number) get(dst []float32, src []byte) {
	switch n {
	case f16:
		for i := range dst {
			dst[i] = half(le.Uint16(src[2*i:]))
		}
	case f64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(le.Uint64(src[8*i:])))
		}
	default:
		wire.GetFloats(dst, n.dtype(), src)
	}
}

// half converts an IEEE 754 binary16 exactly.
func half(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0: // zero or subnormal: frac · 2^-24
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

func finite(v float32) bool { return v-v == 0 }

func getKeys(dst []rowraft.Key, src []byte) {
	for i := range dst {
		dst[i] = rowraft.Key(le.Uint64(src[8*i:]))
	}
}

func appendKeys(dst []byte, keys []rowraft.Key) []byte {
	for _, k := range keys {
		dst = le.AppendUint64(dst, uint64(k))
	}
	return dst
}

// appendFloats appends src as dtype.
func appendFloats(dst []byte, dtype rowraft.DType, src []float32) []byte {
	at, n := len(dst), len(src)*dtype.Size()
	if cap(dst)-at < n {
		dst = append(dst, make([]byte, n)...)
	}
	dst = dst[:at+n]
	wire.PutFloats(dst[at:], dtype, src)
	return dst
}
