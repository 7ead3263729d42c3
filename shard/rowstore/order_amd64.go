//go:build linux || !race

package rowstore

// loadFence orders the loads before it before those behind it. On amd64 they are
// in order anyway; the atomic load of a version that follows holds the compiler.
func loadFence() {}

// storeFence orders the stores before it before those behind it. On amd64 they
// are in order anyway, and storeVersion holds the compiler.
func storeFence() {}

// storeVersion stores v behind all stores before it: a plain store, which the
// compiler does not see into. An atomic one of Go would wait until every store has
// reached the cache, which loads behind it need and nothing here does; it cost
// 12 ns each, a tenth of an update.
//
//go:noescape
func storeVersion(p *uint64, v uint64)
