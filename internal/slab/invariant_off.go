//go:build !invariant

package slab

// poison overwrites freed records and blocks, so that tests detect a use after free.
const poison = false
