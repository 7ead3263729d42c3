package data

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// Skipping n examples leaves the same ones as reading n, of any share of any source.
func TestSkippedExamplesAreThoseThatWouldBeRead(t *testing.T) {
	var text strings.Builder
	for i := range 37 {
		fmt.Fprintf(&text, "%d,v%d\n", i%2, i)
	}
	s := schema(t, "header: false\nlabel: {position: 1}\ncategorical: [{position: 2, name: c}]\n")
	file, err := openFile(write(t, "x.csv", text.String()), s, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultGenerator()
	cfg.Examples, cfg.Categorical, cfg.Keys = 33, 2, 50
	generator, err := NewGenerator(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var pixels, labels []byte
	for i := range byte(31) {
		pixels, labels = append(pixels, i, 1, 2, 3), append(labels, i)
	}
	images, err := openPictures(t, idx(pixels, 31, 2, 2), idx(labels, 31), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []Ranger{file, generator} {
		src, err := set.Train(0, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		whole := all(t, src, set.Shape(), 5)
		for from := range whole.N {
			for _, to := range []int{from + 1, from + 7, whole.N, whole.N + 3} {
				src, err := set.Range(0, int64(from), int64(to))
				if err != nil {
					t.Fatal(err)
				}
				share := all(t, src, set.Shape(), 4)
				n := set.Shape().Categorical
				if !slices.Equal(share.Keys, whole.Keys[from*n:min(to, whole.N)*n]) {
					t.Fatalf("%s: examples %d to %d are others than those of the whole", set.Name(), from, to)
				}
			}
		}
	}
	for _, set := range []Set{file, generator, images} {
		for _, share := range []Share{{Rank: 0, Trainers: 1}, {Rank: 1, Trainers: 3}, {Rank: 2, Trainers: 3}} {
			open := func() Source {
				src, err := set.Train(0, share.Rank, share.Trainers)
				if err != nil {
					t.Fatal(err)
				}
				return src
			}
			whole := all(t, open(), set.Shape(), 5)
			for n := range whole.N + 2 {
				src := open()
				err := src.Skip(int64(n))
				if n > whole.N {
					if err != io.EOF {
						t.Errorf("%s, %+v: skip %d of %d: %v, want EOF", set.Name(), share, n, whole.N, err)
					}
					src.Close()
					continue
				}
				if err != nil {
					t.Fatalf("%s, %+v: skip %d of %d: %v", set.Name(), share, n, whole.N, err)
				}
				rest := all(t, src, set.Shape(), 4)
				c := set.Shape().Categorical
				if rest.N != whole.N-n || !slices.Equal(rest.Keys, whole.Keys[n*c:whole.N*c]) ||
					!slices.Equal(rest.Labels[:rest.N], whole.Labels[n:whole.N]) {
					t.Errorf("%s, %+v: after %d of %d examples come %d others: %v", set.Name(), share, n, whole.N, rest.N,
						[]rowraft.Key(rest.Keys))
				}
			}
		}
	}
}
