package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// imageBytes is the size of an image: a record and a link. It is rounded up to whole cache lines
// if that adds at most a twelfth.
func (rs *records) imageBytes() int {
	n := rs.slabRecordBytes() + 8
	if lines := (n + order.LineBytes - 1) &^ (order.LineBytes - 1); lines-n <= n/12 {
		return lines
	}
	return n
}

// putImage saves the image of r and links it to the images of the slot of c.
func (s *Snapshot) putImage(c *cut, r record) error {
	rs := &s.t.index.records
	p, at, err := s.newImage()
	if err != nil {
		return err
	}
	if rs.imageLines {
		order.Stream(at, rs.start(r), rs.slabRecordBytes(), uint64(c.image))
	} else {
		image := rs.recordAt(at)
		copy(rs.bytes(image), rs.bytes(r))
		*rs.nextImage(image) = c.image
	}
	c.image = uint32(p) + 1
	return nil
}

// nextImage is the link, which follows the image of the record.
func (rs *records) nextImage(r record) *uint32 {
	return (*uint32)(unsafe.Add(rs.start(r), rs.slabRecordBytes()))
}

// readyImages are free places for the writer's next images, used from the last to the first. The
// writer gets many places per lock. It prefetches their memory before it needs it, unless images
// are written past the caches: waiting for each cache line was half of the cost of a push.
type readyImages struct {
	n     int
	place [imagesAtOnce]slab.Place
	at    [imagesAtOnce]unsafe.Pointer
}

const (
	imagesAtOnce = 64
	imagesAhead  = 4 // how many are prefetched
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
	if next := f.n - imagesAhead; next >= 0 && !s.t.index.imageLines {
		order.Prefetch(&f.at[next], 1, 0, s.t.index.imageBytes())
	}
	return f.place[f.n], f.at[f.n], nil
}

// readyMore fills ready with places of images of saved slots. If the reader holds the lock to add
// such places, or has too few, readyMore allocates new ones.
func (s *Snapshot) readyMore() error {
	f, images := &s.ready, s.kept.images
	if s.kept.TryLock() {
		rest := len(s.kept.spare) - min(imagesAtOnce, len(s.kept.spare))
		f.n = copy(f.place[:], s.kept.spare[rest:])
		s.kept.spare = s.kept.spare[:rest]
		s.kept.Unlock()
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
	if first := max(0, f.n-imagesAhead); !s.t.index.imageLines {
		order.Prefetch(&f.at[first], f.n-first, 0, s.t.index.imageBytes())
	}
	return nil
}
