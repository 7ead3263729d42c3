//go:build goexperiment.simd && amd64

package wire

import "simd/archsimd"

// haveAVX2 is fixed at start; without it the plain loops run.
var haveAVX2 = archsimd.X86.AVX2()

// The shift count is a vector: for a shift by a scalar, Go 1.26 moves the count with a
// legacy SSE instruction between AVX instructions, which cost a microsecond per row.

// lanes is how many numbers are converted at a time.
const lanes = 8

// roundMany writes the first numbers of src to dst, rounded like BFloat16, and
// returns how many it wrote, a multiple of 8.
func roundMany(dst []byte, src []float32) int {
	if !haveAVX2 || len(src) < lanes {
		return 0
	}
	dst = dst[:2*len(src)]
	half, one := archsimd.BroadcastUint32x8(0x7FFF), archsimd.BroadcastUint32x8(1)
	sixteen := archsimd.BroadcastUint32x8(16)
	quiet := archsimd.BroadcastUint32x8(0x40)
	magnitude, inf := archsimd.BroadcastUint32x8(0x7FFFFFFF), archsimd.BroadcastInt32x8(0x7F800000)
	i := 0
	for ; i+lanes <= len(src); i += lanes {
		x := archsimd.LoadFloat32x8Slice(src[i:]).AsUint32x8()
		top := x.ShiftRight(sixteen)
		rounded := x.Add(half).Add(top.And(one)).ShiftRight(sixteen)
		nan := x.And(magnitude).AsInt32x8().Greater(inf)
		r := top.Or(quiet).Merge(rounded, nan).AsInt32x8()
		r.GetLo().SaturateToUint16Concat(r.GetHi()).AsUint8x16().StoreSlice(dst[2*i:])
	}
	archsimd.ClearAVXUpperBits()
	return i
}

// widenMany writes the first bfloat16 numbers of src to dst as float32, and
// returns how many it wrote, a multiple of 8. The length of dst is the number of numbers.
func widenMany(dst, src []byte) int {
	n := len(dst) / 4
	if !haveAVX2 || n < lanes {
		return 0
	}
	src = src[:2*n]
	sixteen := archsimd.BroadcastUint32x8(16)
	i := 0
	for ; i+lanes <= n; i += lanes {
		x := archsimd.LoadUint8x16Slice(src[2*i:]).AsUint16x8().ExtendToUint32()
		x.ShiftLeft(sixteen).AsUint8x32().StoreSlice(dst[4*i:])
	}
	archsimd.ClearAVXUpperBits()
	return i
}

// scanExponents adds unit to the bits in mask of each 32 bits of the first bytes of values. It returns the bits that
// are set in any of the sums, and how many bytes it read, a multiple of 32.
func scanExponents(values []byte, mask, unit uint32) (or uint64, n int) {
	const width = 32
	if !haveAVX2 || len(values) < width {
		return 0, 0
	}
	m, u := archsimd.BroadcastUint32x8(mask), archsimd.BroadcastUint32x8(unit)
	var all archsimd.Uint32x8
	for ; n+width <= len(values); n += width {
		all = all.Or(archsimd.LoadUint8x32Slice(values[n:]).AsUint32x8().And(m).Add(u))
	}
	var lane [8]uint32
	all.StoreSlice(lane[:])
	archsimd.ClearAVXUpperBits()
	for _, v := range lane {
		or |= uint64(v)
	}
	return or | or<<32, n
}
