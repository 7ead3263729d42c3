package data

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// Images is a data set of images and their classes in pairs of idx files, the format of MNIST (LeCun, Cortes,
// Burges): big-endian sizes, then bytes. Pixels become numbers from 0 to 1.
type Images struct {
	train, held imagePair
	size        int64 // training examples
	from        int64 // first held-out image of held
	shape       Shape
}

// ImagesConfig names the files; a file whose name ends in .gz is gunzipped.
type ImagesConfig struct {
	Images, Labels string
	// HeldImages and HeldLabels are the held-out examples. Without them, the share Held, [0, 1), at the end of the
	// others is held out.
	HeldImages, HeldLabels string
	Held                   float64
	Limit                  int64 // train on the first so many images; 0: all
}

// maxPixels limits the size that an image may claim.
const maxPixels = 1 << 20

// OpenImages reads all files once, so that errors in them are reported before training begins.
//
// Errors: CodeInvalidArgument, naming the file and the expected content.
func OpenImages(c ImagesConfig) (*Images, error) {
	if !(c.Held >= 0 && c.Held < 1) {
		return nil, invalid("held-out share %v: want from 0 to below 1", c.Held)
	}
	if (c.HeldImages == "") != (c.HeldLabels == "") {
		return nil, invalid("held-out images and labels must be given together, and one is missing")
	}
	s := &Images{train: imagePair{images: c.Images, labels: c.Labels}}
	if err := s.train.check(); err != nil {
		return nil, err
	}
	s.size = s.train.count
	if s.held = s.train; c.HeldImages != "" {
		s.held = imagePair{images: c.HeldImages, labels: c.HeldLabels}
		if err := s.held.check(); err != nil {
			return nil, err
		}
		if s.held.height != s.train.height || s.held.width != s.train.width {
			return nil, invalid("%s: images of %d × %d, those of %s are %d × %d",
				c.HeldImages, s.held.height, s.held.width, c.Images, s.train.height, s.train.width)
		}
	} else {
		s.size -= int64(math.Round(float64(s.size) * c.Held))
		s.from = s.size
	}
	if c.Limit > 0 {
		s.size = min(s.size, c.Limit)
	}
	s.shape = Shape{
		Dense: s.train.height * s.train.width, Height: s.train.height, Width: s.train.width,
		Classes: max(s.train.classes, s.held.classes, 2),
	}
	return s, nil
}

// Shape implements [Set].
func (s *Images) Shape() Shape { return s.shape }

// TrainSize implements [Set].
func (s *Images) TrainSize() int64 { return s.size }

// Name implements [Set].
func (s *Images) Name() string { return s.train.images }

// Train implements [Set].
func (s *Images) Train(_ int64, rank, trainers int) (Source, error) {
	return s.train.open(Share{To: s.size, Rank: rank, Trainers: trainers})
}

// HeldSize implements [Set].
func (s *Images) HeldSize() int64 { return s.held.count - s.from }

// Held implements [Set].
func (s *Images) Held() (Source, error) {
	return s.held.open(Share{From: s.from, To: s.held.count, Trainers: 1})
}

// imagePair is a file of images, the file of their labels, and the sizes that check found.
type imagePair struct {
	images, labels         string
	count                  int64
	height, width, classes int
}

// check reads both files to their ends.
func (p *imagePair) check() error {
	labels, err := openIdx(p.labels, 1)
	if err != nil {
		return err
	}
	defer labels.close()
	images, err := openIdx(p.images, 3)
	if err != nil {
		return err
	}
	defer images.close()
	p.count, p.height, p.width = images.sizes[0], int(images.sizes[1]), int(images.sizes[2])
	if n := labels.sizes[0]; n != p.count {
		return invalid("%s has %d images, %s has %d labels: want as many", p.images, p.count, p.labels, n)
	}
	if p.count == 0 {
		return invalid("%s: no images", p.images)
	}
	for range p.count {
		b, err := labels.next()
		if err != nil {
			return err
		}
		p.classes = max(p.classes, int(b[0])+1)
	}
	for range p.count {
		if _, err := images.next(); err != nil {
			return err
		}
	}
	if err := labels.end(); err != nil {
		return err
	}
	return images.end()
}

func (p *imagePair) open(share Share) (*imageSource, error) {
	if err := share.validate(); err != nil {
		return nil, err
	}
	images, err := openIdx(p.images, 3)
	if err != nil {
		return nil, err
	}
	labels, err := openIdx(p.labels, 1)
	if err != nil {
		images.close()
		return nil, err
	}
	if images.sizes[0] != p.count || labels.sizes[0] != p.count || images.sizes[1] != int64(p.height) ||
		images.sizes[2] != int64(p.width) {
		images.close()
		labels.close()
		return nil, invalid("%s: the file has changed since it was opened", p.images)
	}
	return &imageSource{images: images, labels: labels, share: share}, nil
}

// imageSource reads the examples of one Share.
type imageSource struct {
	images, labels *idxFile
	share          Share
	number         int64 // of the next image in the file
}

// nextOwn returns the next image of the Share, its label and its number.
func (s *imageSource) nextOwn() (image []byte, label byte, number int64, err error) {
	for {
		if s.number >= s.share.To {
			return nil, 0, 0, io.EOF
		}
		if image, err = s.images.next(); err != nil {
			return nil, 0, 0, err
		}
		b, err := s.labels.next()
		if err != nil {
			return nil, 0, 0, err
		}
		number = s.number
		s.number++
		if number >= s.share.From && (number-s.share.From)%int64(s.share.Trainers) == int64(s.share.Rank) {
			return image, b[0], number, nil
		}
	}
}

// Next implements [Source].
func (s *imageSource) Next(b *Batch) error {
	b.Reset()
	for b.N < len(b.Labels) {
		image, label, number, err := s.nextOwn()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if b.N == 0 {
			b.First = number
		}
		b.Labels[b.N] = float32(label)
		dst := b.Dense[b.N*len(image) : (b.N+1)*len(image)]
		for i, v := range image {
			dst[i] = float32(v) / 255
		}
		b.N++
	}
	b.Read = b.N
	if b.N == 0 {
		return io.EOF
	}
	return nil
}

// Skip implements [Source].
func (s *imageSource) Skip(n int64) error {
	for ; n > 0; n-- {
		if _, _, _, err := s.nextOwn(); err != nil {
			return err
		}
	}
	return nil
}

// Close implements [Source].
func (s *imageSource) Close() error {
	s.images.close()
	s.labels.close()
	return nil
}

// idxFile reads the items of an idx file: magic 0, 0, type, number of sizes; the
// sizes, big-endian; then the items of the first, row-major.
type idxFile struct {
	path  string
	file  *os.File
	gz    *gzip.Reader // nil if not compressed
	in    *bufio.Reader
	sizes []int64
	read  int64  // items read
	item  []byte // scratch
}

// unsignedBytes is the item type that this reader supports.
const unsignedBytes = 0x08

// openIdx reads the header of a file that must have this number of sizes.
func openIdx(path string, sizes int) (*idxFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, invalid("data: %w", err)
	}
	f := &idxFile{path: path, file: file}
	var r io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if f.gz, err = gzip.NewReader(bufio.NewReaderSize(file, 64<<10)); err != nil {
			f.close()
			return nil, invalid("%s: the name ends in .gz, but it is not gzip: %w", path, err)
		}
		r = f.gz
	}
	f.in = bufio.NewReaderSize(r, 64<<10)
	if err := f.head(sizes); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *idxFile) head(sizes int) error {
	b := make([]byte, 4+4*sizes)
	if n, err := io.ReadFull(f.in, b[:4]); err != nil {
		return f.cut(fmt.Sprintf("%d bytes", n), fmt.Sprintf("a head of %d", len(b)), err)
	}
	switch {
	case b[0] != 0 || b[1] != 0:
		return invalid("%s: it begins with %x, an idx file with 0000", f.path, b[:4])
	case b[2] != unsignedBytes:
		return invalid("%s: items of type 0x%02x: only unsigned bytes, 0x%02x, are read", f.path, b[2], unsignedBytes)
	case int(b[3]) != sizes:
		return invalid("%s: %d dimensions, want %d: labels have one, images three", f.path, b[3], sizes)
	}
	if n, err := io.ReadFull(f.in, b[4:]); err != nil {
		return f.cut(fmt.Sprintf("%d bytes", 4+n), fmt.Sprintf("a head of %d", len(b)), err)
	}
	bytes := int64(1)
	for i := range sizes {
		n := int64(binary.BigEndian.Uint32(b[4+4*i:]))
		f.sizes = append(f.sizes, n)
		if i == 0 {
			continue
		}
		if n < 1 || n > maxPixels/bytes {
			return invalid("%s: images of %v pixels: want at least one, and at most %d in all", f.path,
				binary.BigEndian.Uint32(b[4+4*i:]), maxPixels)
		}
		bytes *= n
	}
	f.item = make([]byte, bytes)
	return nil
}

// cut returns the error of a file that ends, or cannot be read, too early.
func (f *idxFile) cut(has, want string, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return invalid("%s: the file is cut short: %s, want %s", f.path, has, want)
	}
	return invalid("%s: after %s: %w", f.path, has, err)
}

// next returns the next item; the slice is valid until the next call.
func (f *idxFile) next() ([]byte, error) {
	if _, err := io.ReadFull(f.in, f.item); err != nil {
		return nil, f.cut(fmt.Sprintf("%d whole items", f.read), fmt.Sprint(f.sizes[0]), err)
	}
	f.read++
	return f.item, nil
}

// end returns an error if bytes follow the last item.
func (f *idxFile) end() error {
	if _, err := f.in.ReadByte(); err == nil {
		return invalid("%s: more bytes follow its %d items", f.path, f.sizes[0])
	} else if err != io.EOF {
		return f.cut(fmt.Sprintf("%d items", f.read), "no more", err)
	}
	return nil
}

func (f *idxFile) close() {
	if f.gz != nil {
		f.gz.Close()
	}
	f.file.Close()
}
