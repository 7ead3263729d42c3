package wire

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestConversionsOfMany: in every build rows of any length and alignment convert as
// one number at a time does: all top halves, with the bottom halves around a tie.
func TestConversionsOfMany(t *testing.T) {
	bottoms := []uint32{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF}
	for n := 1; n <= 41; n++ {
		src := make([]float32, n)
		buf := make([]byte, 4*n+3)
		for top := uint32(0); top < 1<<16; top += uint32(n) {
			for _, bottom := range bottoms {
				for i := range src {
					src[i] = math.Float32frombits((top+uint32(i))<<16 | bottom)
				}
				half := buf[top%3:][:2*n]
				PutFloats(half, rowraft.BFloat16, src)
				for i, v := range src {
					if got, want := binary.LittleEndian.Uint16(half[2*i:]), BFloat16(v); got != want {
						t.Fatalf("number %d of %d: %08x becomes %04x, want %04x", i, n, math.Float32bits(v), got, want)
					}
				}
			}
			if n > 17 {
				top += 5000 // the lengths of whole registers have seen them all
			}
		}
		for first := uint32(0); first < 1<<16; first += uint32(n) + first%7*100 {
			half := buf[first%3:][:2*n]
			for i := range n {
				binary.LittleEndian.PutUint16(half[2*i:], uint16(first)+uint16(i))
			}
			wide := make([]byte, 4*n)
			Widen(wide, half)
			row := make([]float32, n)
			GetFloats(row, rowraft.BFloat16, half)
			for i := range n {
				want := uint32(uint16(first)+uint16(i)) << 16
				if got := binary.LittleEndian.Uint32(wide[4*i:]); got != want || math.Float32bits(row[i]) != want {
					t.Fatalf("number %d of %d: widened to %08x and %08x, want %08x", i, n, got, math.Float32bits(row[i]), want)
				}
			}
		}
	}
}

// TestBFloat16: to nearest, ties to even.
func TestBFloat16(t *testing.T) {
	for _, tc := range []struct {
		in   uint32
		want uint16
	}{
		{0x3F800000, 0x3F80}, // 1
		{0x3F808000, 0x3F80}, // half way: even stays
		{0x3F818000, 0x3F82}, // half way: odd goes up
		{0x3F808001, 0x3F81},
		{0x7F7FFFFF, 0x7F80}, // the largest rounds to infinity
		{0x80000001, 0x8000},
		{0x7F800000, 0x7F80},
		{0x7F800001, 0x7FC0}, // a NaN stays one
	} {
		if got := BFloat16(math.Float32frombits(tc.in)); got != tc.want {
			t.Errorf("BFloat16(%08x) = %04x, want %04x", tc.in, got, tc.want)
		}
	}
}
