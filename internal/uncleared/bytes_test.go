package uncleared

import "testing"

// Each length has its own memory, of which all bytes can be written and read.
func TestBytes(t *testing.T) {
	for _, n := range []int{0, 1, 7, 1000, 33 << 10, 512<<10 + 3} {
		a, b := Bytes(n), Bytes(n)
		if len(a) != n || len(b) != n || cap(a) != n {
			t.Fatalf("%d bytes: length %d, capacity %d", n, len(a), cap(a))
		}
		for i := range a {
			a[i], b[i] = 1, 2
		}
		for i := range a {
			if a[i] != 1 || b[i] != 2 {
				t.Fatalf("%d bytes: two results share memory", n)
			}
		}
	}
}
