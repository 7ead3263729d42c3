//go:build !((amd64 || arm64) && (linux || !race))

package order

import (
	"sync"
	"sync/atomic"
)

// RowLock excludes readers while the writer changes rows, on machines for which the package
// comment ("Readers") does not prove the order of loads and stores.
type RowLock struct{ sync.RWMutex }

func LoadFence()  {}
func StoreFence() {}

func Store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
