package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft/internal/slab"
)

const lineBytes = 64 // of the caches

// imageBytes is the size of an image: a record, a link, and what makes it whole lines
// where that is a sixteenth at most.
func (t *Table) imageBytes() int {
	n := t.slabRecordBytes() + 8
	if lines := (n + lineBytes - 1) &^ (lineBytes - 1); lines-n <= n/16 {
		return lines
	}
	return n
}

// putImage adds the image of r to those of the slot of c.
func (s *Snapshot) putImage(c *cut, r record) error {
	t := s.t
	p, at, err := s.newImage()
	if err != nil {
		return err
	}
	if t.imageLines {
		streamImage(at, r.p, t.slabRecordBytes(), uint64(c.image))
	} else {
		image := record{at}
		copy(t.bytes(image), t.bytes(r))
		*t.nextImage(image) = c.image
	}
	c.image = uint32(p) + 1
	return nil
}

// nextImage is the link behind an image.
func (t *Table) nextImage(r record) *uint32 {
	return (*uint32)(unsafe.Add(r.p, t.slabRecordBytes()))
}

// readyImages are places for the writer's next images, the last one first. It fetches
// them under one hold of the lock. It asks for their memory before it needs it, unless
// they are written past the caches: to wait for each line of it was half of what a push
// costs.
type readyImages struct {
	n     int
	place [imagesAtOnce]slab.Place
	at    [imagesAtOnce]unsafe.Pointer
}

const (
	imagesAtOnce = 64
	imagesAhead  = 4 // are asked for
)

// newImage returns a place for an image and its address.
func (s *Snapshot) newImage() (slab.Place, unsafe.Pointer, error) {
	f := &s.ready
	if f.n == 0 {
		if err := s.readyMore(); err != nil {
			return 0, nil, err
		}
	}
	f.n--
	if next := f.n - imagesAhead; next >= 0 && !s.t.imageLines {
		prefetch(&f.at[next], 1, 0, s.t.imageBytes())
	}
	return f.place[f.n], f.at[f.n], nil
}

// readyMore gets places: those of saved slots, unless the reader is just adding some,
// else new ones.
func (s *Snapshot) readyMore() error {
	f, images := &s.ready, s.aside.images
	if s.aside.TryLock() {
		rest := len(s.aside.spare) - min(imagesAtOnce, len(s.aside.spare))
		f.n = copy(f.place[:], s.aside.spare[rest:])
		s.aside.spare = s.aside.spare[:rest]
		s.aside.Unlock()
	}
	for f.n < imagesAtOnce {
		n, err := images.AllocSome(f.place[f.n:])
		if f.n += n; f.n == 0 {
			return err
		}
		if err != nil {
			break
		}
	}
	for i := range f.n {
		f.at[i] = images.At(f.place[i])
	}
	if first := max(0, f.n-imagesAhead); !s.t.imageLines {
		prefetch(&f.at[first], f.n-first, 0, s.t.imageBytes())
	}
	return nil
}
