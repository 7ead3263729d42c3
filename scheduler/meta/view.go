package meta

import (
	"context"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// View holds the newest map that a server knows. Safe for concurrent use.
type View struct {
	mu      sync.Mutex
	newest  *clustermap.Map
	changed chan struct{} // closed and replaced when newest changes
}

// NewView returns a view without a map.
func NewView() *View { return &View{changed: make(chan struct{})} }

// Set makes m the newest map, unless the view has the same or a newer version.
func (v *View) Set(m *clustermap.Map) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.newest != nil && m.Version <= v.newest.Version {
		return
	}
	v.newest = m
	close(v.changed)
	v.changed = make(chan struct{})
}

// Map returns the newest map, nil if none is known.
func (v *View) Map() *clustermap.Map {
	m, _ := v.Changed()
	return m
}

// Changed returns the newest map and a channel that is closed when there is a newer one.
func (v *View) Changed() (*clustermap.Map, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.newest, v.changed
}

// Wait returns the first map that is newer than known, or nil if ctx ends first.
func (v *View) Wait(ctx context.Context, known rowraft.MapVersion) *clustermap.Map {
	for {
		m, changed := v.Changed()
		if m != nil && m.Version > known {
			return m
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
