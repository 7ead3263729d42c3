package exported

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/tablefile"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/wire"
)

// table has the rows of one table of embeddings. Immutable after load.
type table struct {
	name    string
	dim     int
	init    rowraft.Initializer
	rounded rowraft.DType // type to which the weights of an id without a row are rounded

	keys   []rowraft.Key
	values []float32 // len(keys) × dim
	// places is a hash table with open addressing: 1 + the index of a key; 0 is empty. At least half of it is empty.
	places []uint32
}

// maxRows bounds the rows of a table, so that an index of a row fits a place.
const maxRows = math.MaxUint32 - 1

// newTable returns a table without rows.
func newTable(d *Table) (*table, error) {
	t := &table{name: d.Name, dim: d.Dim}
	var err error
	switch {
	case d.Dim < 1 || d.Dim > rowraft.MaxDim:
		return nil, corruptf("table %s has rows of %d numbers: want 1 to %d", d.Name, d.Dim, rowraft.MaxDim)
	case d.Rows > maxRows:
		return nil, invalidf("table %s has %d rows: want at most %d", d.Name, d.Rows, uint64(maxRows))
	}
	if t.rounded, err = rowraft.ParseDType(d.Rounded); err != nil {
		return nil, corruptf("table %s: rounded: %w", d.Name, err)
	}
	if t.init, err = d.Initializer.initializer(); err != nil {
		return nil, fmt.Errorf("table %s: %w", d.Name, err)
	}
	return t, nil
}

// loadRows is how many rows are read at a time.
const loadRows = 4096

// load reads the rows of the files of d, whose checksums are right.
func (t *table) load(disk vfs.FS, path func(string) string, d *Table) error {
	for i := range d.Files {
		if err := t.loadFile(disk, path(d.Files[i].File), &d.Files[i]); err != nil {
			return err
		}
	}
	if uint64(len(t.keys)) != d.Rows {
		return corruptf("the files of table %s have %d rows: want %d", t.name, len(t.keys), d.Rows)
	}
	return t.index()
}

func (t *table) loadFile(disk vfs.FS, path string, d *File) (err error) {
	r, err := tablefile.Open(path, tablefile.SafeTensors, tablefile.ReadOptions{Disk: disk})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	info := r.Info()
	if info.Dim != t.dim || info.Rows != d.Rows || info.Rows > maxRows-uint64(len(t.keys)) {
		return corruptf("file %s has %d rows of %d: want %d of %d", path, info.Rows, info.Dim, d.Rows, t.dim)
	}
	// The reader has compared the number of rows with the length of the file.
	at := len(t.keys)
	t.keys = append(t.keys, make([]rowraft.Key, info.Rows)...)
	t.values = append(t.values, make([]float32, int(info.Rows)*t.dim)...)
	for at < len(t.keys) {
		end := min(at+loadRows, len(t.keys))
		n, err := r.Next(t.keys[at:end], t.values[at*t.dim:end*t.dim])
		if errors.Is(err, io.EOF) {
			return corruptf("file %s ends after %d rows", path, at)
		} else if err != nil {
			return err
		}
		at += n
	}
	return nil
}

// index makes places.
func (t *table) index() error {
	size := 16
	for size < 2*len(t.keys) {
		size *= 2
	}
	t.places = make([]uint32, size)
	for i, k := range t.keys {
		at, found := t.find(k)
		if found {
			return corruptf("id %d is twice in the files of table %s", k, t.name)
		}
		t.places[at] = uint32(i + 1)
	}
	return nil
}

// find returns the place of a key, or the empty one in which it belongs.
func (t *table) find(k rowraft.Key) (at int, found bool) {
	mask := len(t.places) - 1
	for at = int(uint64(k)*0x9e3779b97f4a7c15>>32) & mask; ; at = (at + 1) & mask {
		switch p := t.places[at]; {
		case p == 0:
			return at, false
		case t.keys[p-1] == k:
			return at, true
		}
	}
}

// row writes the weights of a key to dst.
func (t *table) row(k rowraft.Key, dst []float32) {
	if at, found := t.find(k); found {
		copy(dst, t.values[int(t.places[at]-1)*t.dim:])
		return
	}
	optim.Init(t.init, k, dst)
	wire.RoundTo(t.rounded, dst)
}
