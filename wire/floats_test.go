package wire

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestConversionsOfMany: in every build, rows of any length and alignment are converted like single
// numbers: all top halves, with bottom halves around a tie.
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
				top += 5000 // lengths of whole registers have tested all values
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
