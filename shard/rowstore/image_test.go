package rowstore

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// TestStreamImage: streamImage writes the record and the link for every size of the remainder of the last
// line, and nothing after them.
func TestStreamImage(t *testing.T) {
	for n := 8; n <= 700; n += 8 {
		lines := (n + 8 + lineBytes - 1) &^ (lineBytes - 1)
		mem := make([]byte, lines+3*lineBytes)
		for i := range mem {
			mem[i] = 0xAA
		}
		skip := int(-uintptr(unsafe.Pointer(&mem[0])) & (lineBytes - 1))
		dst := mem[skip+lineBytes:]
		src := make([]byte, n)
		for i := range src {
			src[i] = byte(i + n)
		}
		streamImage(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), n, 0x1234567)
		if !bytes.Equal(dst[:n], src) || binary.LittleEndian.Uint32(dst[n:]) != 0x1234567 {
			t.Fatalf("%d bytes: got % x", n, dst[:n+8])
		}
		rest := append(bytes.Clone(mem[:skip+lineBytes]), dst[lines:]...)
		if want := bytes.Repeat([]byte{0xAA}, len(rest)); !bytes.Equal(rest, want) {
			t.Fatalf("%d bytes: bytes after the image changed", n)
		}
	}
}

// TestImageBytes: an image is whole cache lines if that adds at most a sixteenth.
func TestImageBytes(t *testing.T) {
	for _, tc := range []struct {
		dim  int
		want int
	}{
		{1, 24 + 8 + 8},
		{16, 24 + 2*64 + 8},
		{64, 9 * 64},   // 24 + 2·256 + 8 = 544
		{128, 17 * 64}, // 1056
		{120, 16 * 64}, // 992
		{32, 24 + 8*32 + 8},
	} {
		if got := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, tc.dim)).index.imageBytes(); got != tc.want {
			t.Errorf("dim %d: %d, want %d", tc.dim, got, tc.want)
		}
	}
}
