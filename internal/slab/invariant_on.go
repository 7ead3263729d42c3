//go:build invariant

package slab

// poison overwrites freed records and blocks, so that a use after free shows.
const poison = true
