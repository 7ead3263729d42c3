package order

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"
)

// TestStream: Stream writes the record and the link for every size of the remainder of the last
// line, and nothing after them.
func TestStream(t *testing.T) {
	for n := 8; n <= 700; n += 8 {
		lines := (n + 8 + LineBytes - 1) &^ (LineBytes - 1)
		mem := make([]byte, lines+3*LineBytes)
		for i := range mem {
			mem[i] = 0xAA
		}
		skip := int(-uintptr(unsafe.Pointer(&mem[0])) & (LineBytes - 1))
		dst := mem[skip+LineBytes:]
		src := make([]byte, n)
		for i := range src {
			src[i] = byte(i + n)
		}
		Stream(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), n, 0x1234567)
		if !bytes.Equal(dst[:n], src) || binary.LittleEndian.Uint32(dst[n:]) != 0x1234567 {
			t.Fatalf("%d bytes: got % x", n, dst[:n+8])
		}
		rest := append(bytes.Clone(mem[:skip+LineBytes]), dst[lines:]...)
		if want := bytes.Repeat([]byte{0xAA}, len(rest)); !bytes.Equal(rest, want) {
			t.Fatalf("%d bytes: bytes after the image changed", n)
		}
	}
}
