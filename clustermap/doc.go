// Package clustermap finds the replicas that hold a key: key → slot → shard → replicas.
//
// A Map is an immutable value with a version; everything else here is a pure
// function. The scheduler creates maps; all other components only read them.
//
// The hash is public and versioned (HashVersion): any language computes it in
// three lines, and wire/testdata/hash.txt has test vectors.
package clustermap
