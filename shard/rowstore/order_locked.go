//go:build !((amd64 || arm64) && (linux || !race))

package rowstore

import (
	"sync"
	"sync/atomic"
)

// rowLock keeps readers and the writer apart where the order of their loads and
// stores has not been argued; see the package's "Readers".
type rowLock struct{ sync.RWMutex }

func loadFence()  {}
func storeFence() {}

func storeVersion(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
