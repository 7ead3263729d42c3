// Package tidy holds the rules of this repository that a machine can check.
//
// Its tests run every rule over the repository, and every rule over a small bad
// example that it must catch, so a rule that stopped looking is noticed:
//
//	imports       who may import whom: the levels of ARCHITECTURE.md, and which
//	              libraries stay behind which package
//	packagedoc    a package says in its first sentence what it is
//	exit          only main packages end a process
//	version       a command has the variable that make build sets
//	sleep         no test waits by sleeping
//	raftconfig    settings and answers of hashicorp/raft that must never be used
//	backend       the pure Go compute backend is opened as go:ops_sequential
//	determinism   no clock, randomness, map order or transcendental function
//	              in code that applies log entries
//	product       float32(a*b) around every product there, so that it cannot fuse
//	decoders      what takes foreign bytes apart has a fuzz target
//	logkeys       the keys of log lines are those of a list
//	words         texts for people say server, not node
//	size          lines, files, packages and types that a person can read
//
// Other tests check more than source: the versions in go.mod, instructions that
// the compiler fused, links that lead nowhere, code and commands that documents
// show, and data that must not be committed.
//
// A line that has a reason to break a rule says so, on the line or above it:
//
//	//tidy:allow determinism the order of Close does not matter
package tidy
