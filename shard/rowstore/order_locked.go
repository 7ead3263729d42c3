//go:build !((amd64 || arm64) && (linux || !race))

package rowstore

import "sync"

// rowLock keeps readers and the writer apart where the order of their loads and
// stores has not been argued; see the package's "Readers".
type rowLock struct{ sync.RWMutex }

func loadFence()  {}
func storeFence() {}
