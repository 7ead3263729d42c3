// Package clustermap says which replica holds a key: key → slot → shard → replicas.
//
// A Map is an immutable value with a version; everything else here is a pure
// function. The scheduler makes maps, everybody else reads them.
//
// The hash is public and versioned (HashVersion): any language computes it in
// three lines, and wire/testdata/hash.txt has test vectors.
package clustermap
