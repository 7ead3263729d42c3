package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
)

// idx is a file of unsigned bytes with these sizes.
func idx(items []byte, sizes ...uint32) []byte {
	b := []byte{0, 0, 8, byte(len(sizes))}
	for _, n := range sizes {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return append(b, items...)
}

func zip(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// pictures are five images of 2 × 3 pixels, number i made of 10·i + pixel.
func pictures() (images, labels []byte) {
	var pixels []byte
	for i := range byte(5) {
		for p := range byte(6) {
			pixels = append(pixels, 10*i+p)
		}
	}
	return idx(pixels, 5, 2, 3), idx([]byte{3, 0, 1, 1, 2}, 5)
}

func openPictures(t *testing.T, images, labels []byte, suffix string, change func(*ImagesConfig)) (*Images, error) {
	t.Helper()
	dir := t.TempDir()
	c := ImagesConfig{Images: filepath.Join(dir, "images"+suffix), Labels: filepath.Join(dir, "labels"+suffix)}
	for path, b := range map[string][]byte{c.Images: images, c.Labels: labels} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&c)
	}
	return OpenImages(c)
}

func TestImages(t *testing.T) {
	images, labels := pictures()
	for _, tc := range []struct {
		suffix      string
		change      func(*ImagesConfig)
		train, held string
	}{
		{"", nil, "0:3 1:0 2:1 3:1 4:2", ""},
		{".gz", func(c *ImagesConfig) { c.Held = 0.4 }, "0:3 1:0 2:1", "3:1 4:2"},
		{"", func(c *ImagesConfig) { c.Held, c.Limit = 0.4, 2 }, "0:3 1:0", "3:1 4:2"},
		{"", func(c *ImagesConfig) { c.HeldImages, c.HeldLabels, c.Limit = c.Images, c.Labels, 1 }, "0:3",
			"0:3 1:0 2:1 3:1 4:2"},
	} {
		a, b := images, labels
		if tc.suffix == ".gz" {
			a, b = zip(a), zip(b)
		}
		s, err := openPictures(t, a, b, tc.suffix, tc.change)
		if err != nil {
			t.Fatal(err)
		}
		if want := (Shape{Dense: 6, Height: 2, Width: 3, Classes: 4}); s.Shape() != want {
			t.Errorf("shape %+v, want %+v", s.Shape(), want)
		}
		train, err := s.Train(0, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		held, err := s.Held()
		if err != nil {
			t.Fatal(err)
		}
		if got := show(t, train); got != tc.train || int64(len(strings.Fields(got))) != s.TrainSize() {
			t.Errorf("training part %q of %d, want %q", got, s.TrainSize(), tc.train)
		}
		if got := show(t, held); got != tc.held {
			t.Errorf("held-out part %q, want %q", got, tc.held)
		}
	}
}

// show lists number:label of the images of src, whose pixels it checks.
func show(t *testing.T, src Source) string {
	t.Helper()
	defer src.Close()
	var list []string
	b := NewBatch(2, Shape{Dense: 6})
	for {
		if err := src.Next(b); err == io.EOF {
			return strings.Join(list, " ")
		} else if err != nil {
			t.Fatal(err)
		}
		for i := range b.N {
			number := int(b.Dense[6*i]*255+0.5) / 10
			for p := range 6 {
				if want := float32(10*number+p) / 255; b.Dense[6*i+p] != want {
					t.Errorf("image %d, pixel %d is %v, want %v", number, p, b.Dense[6*i+p], want)
				}
			}
			if i == 0 && b.First != int64(number) {
				t.Errorf("the batch says that it begins with %d, it is %d", b.First, number)
			}
			list = append(list, fmt.Sprintf("%d:%v", number, b.Labels[i]))
		}
	}
}

func TestBadImages(t *testing.T) {
	images, labels := pictures()
	with := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	for _, tc := range []struct {
		name           string
		images, labels []byte
		suffix         string
		change         func(*ImagesConfig)
		want           string
	}{
		{"magic", with(images, 0, 1), labels, "", nil, "it begins with 01000803, an idx file with 0000"},
		{"type", with(images, 2, 0x0d), labels, "", nil, "type 0x0d: only unsigned bytes"},
		{"labels for images", labels, labels, "", nil, "1 dimensions, want 3"},
		{"images for labels", images, images, "", nil, "3 dimensions, want 1"},
		{"head cut short", images[:9], labels, "", nil, "cut short: 9 bytes, want a head of 16"},
		{"empty", nil, labels, "", nil, "cut short: 0 bytes"},
		{"image cut short", images[:len(images)-1], labels, "", nil, "cut short: 4 whole items, want 5"},
		{"labels cut short", images, labels[:len(labels)-1], "", nil, "cut short: 4 whole items, want 5"},
		{"more bytes", append(bytes.Clone(images), 0), labels, "", nil, "more bytes follow its 5 items"},
		{"more labels", images, idx(make([]byte, 6), 6), "", nil, "has 5 images"},
		{"no images", idx(nil, 0, 2, 3), idx(nil, 0), "", nil, "no images"},
		{"huge", idx(nil, 5, 1<<31, 1<<31), labels, "", nil, "images of 2147483648 pixels"},
		{"no pixels", idx(nil, 5, 0, 3), labels, "", nil, "images of 0 pixels"},
		{"no gzip", images, labels, ".gz", nil, "it is not gzip"},
		{"gzip cut short", zip(images)[:30], zip(labels), ".gz", nil, "cut short"},
		{"half a held-out part", images, labels, "", func(c *ImagesConfig) { c.HeldImages = c.Images },
			"must be given together"},
		{"share", images, labels, "", func(c *ImagesConfig) { c.Held = 1 }, "held-out share 1"},
		{"absent", images, labels, "", func(c *ImagesConfig) { c.Images += "x" }, "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := openPictures(t, tc.images, tc.labels, tc.suffix, tc.change)
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("OpenImages = %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
}

// The pictures that the format is known for; they are not part of the project.
func TestMNISTFiles(t *testing.T) {
	dir := "../../../shared/data/mnist/"
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is absent: the data is not part of the project", dir)
	}
	s, err := OpenImages(ImagesConfig{
		Images: dir + "t10k-images-idx3-ubyte.gz", Labels: dir + "t10k-labels-idx1-ubyte.gz",
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Shape{Dense: 784, Height: 28, Width: 28, Classes: 10}); s.Shape() != want || s.TrainSize() != 10_000 {
		t.Errorf("%d images of %+v, want 10000 of %+v", s.TrainSize(), s.Shape(), want)
	}
}

// FuzzIdx reads any two files, as they are or gunzipped: every image is whole,
// two trainers read all of them, and what is wrong is said as CodeInvalidArgument.
func FuzzIdx(f *testing.F) {
	images, labels := pictures()
	f.Add(images, labels, false)
	f.Add(zip(images), zip(labels), true)
	f.Add(images[:20], labels, false)
	f.Add(idx(nil, 1<<31, 1<<10, 1<<10), idx(nil, 1<<31), false)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, images, labels []byte, zipped bool) {
		c := ImagesConfig{Images: filepath.Join(dir, "i"), Labels: filepath.Join(dir, "l"), Held: 0.25}
		if zipped {
			c.Images, c.Labels = c.Images+".gz", c.Labels+".gz"
		}
		for path, b := range map[string][]byte{c.Images: images, c.Labels: labels} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var s *Images
		var err error
		if n := allocs.Bytes(func() { s, err = OpenImages(c) }); n > 4<<20+16*uint64(len(images)+len(labels)) && !zipped {
			t.Errorf("%d bytes made it allocate %d", len(images)+len(labels), n)
		}
		if err != nil {
			wantInvalid(t, err)
			return
		}
		if s.Shape().Dense > 1<<12 || s.TrainSize() > 1<<12 {
			return
		}
		total := int64(0)
		for rank := range 2 {
			src, err := s.Train(0, rank, 2)
			if err != nil {
				t.Fatal(err)
			}
			b := NewBatch(3, s.Shape())
			for err = src.Next(b); err == nil; err = src.Next(b) {
				total += int64(b.N)
				for _, y := range b.Labels[:b.N] {
					if int(y) >= s.Shape().Classes {
						t.Errorf("label %v of %d classes", y, s.Shape().Classes)
					}
				}
			}
			if err != io.EOF {
				t.Error(err)
			}
			src.Close()
		}
		if total != s.TrainSize() {
			t.Errorf("two trainers read %d images of %d", total, s.TrainSize())
		}
	})
}
