//go:build linux || !race

package order

// LoadFence orders earlier loads before later ones. On amd64 loads are in order
// anyway; the atomic load of a version that follows stops the compiler from reordering.
func LoadFence() {}

// StoreFence orders earlier stores before later ones. On amd64 stores are in order anyway, and
// Store stops the compiler from reordering.
func StoreFence() {}

// Store stores v after all earlier stores. It is a plain store that the compiler cannot
// inline. An atomic store of Go would also wait until every store has reached the cache. Only
// later loads would need that, and there are none here; it cost 12 ns per store, a tenth of an update.
//
//go:noescape
func Store(p *uint64, v uint64)
