package cache

import (
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// worth decides whether the versions of rows are worth their bytes. Where a trainer pushes each row that it pulls, no
// copy that is too old is unchanged; next to it, a reader of rows that are seldom pushed saves most of its bytes.
type worth struct {
	total atomic.Uint64 // rows that were unchanged

	mu               sync.Mutex
	asked, unchanged int // rows of recent pulls: asked for with a version, and those that were not sent
}

const (
	// firstRows are pulled with versions before the first decision. After maxRows, older pulls count half.
	firstRows, maxRows = 1 << 10, 1 << 14
	// While versions are not worth it, one key of sampleOf is pulled with them: these show when they are.
	sampleOf = 16
)

// add counts the rows of one pull.
func (w *worth) add(asked, unchanged int) {
	w.total.Add(uint64(unchanged))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked += asked; w.asked > maxRows {
		w.asked /= 2
		w.unchanged /= 2
	}
	w.unchanged += unchanged
}

// is reports whether rows of so many bytes are worth a version: one with the row, and one to ask for it again.
func (w *worth) is(rowBytes int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked < firstRows || w.unchanged*rowBytes > w.asked*2*wire.VersionBytes
}

// Versioned divides rows, indices of keys, into those to pull with their versions, so that a later pull may find them
// unchanged, and the others. A row has rowBytes on the network.
func (t *Table) Versioned(keys []rowraft.Key, rows []int32, rowBytes int) (with, without []int32) {
	if t.versions.is(rowBytes) {
		return rows, nil
	}
	for _, row := range rows {
		if clustermap.Mix64(uint64(keys[row]))%sampleOf == 0 {
			with = append(with, row)
		} else {
			without = append(without, row)
		}
	}
	return with, without
}

// Asked counts a pull of rows that had a version: so many, of which some were unchanged.
func (t *Table) Asked(rows, unchanged int) { t.versions.add(rows, unchanged) }
