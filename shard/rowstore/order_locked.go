//go:build !((amd64 || arm64) && (linux || !race))

package rowstore

import (
	"sync"
	"sync/atomic"
)

// rowLock excludes readers while the writer changes rows, on machines for which the package
// comment ("Readers") does not prove the order of loads and stores.
type rowLock struct{ sync.RWMutex }

func loadFence()  {}
func storeFence() {}

func storeVersion(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
