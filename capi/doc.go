//go:build cgo

// Command capi is the C library of rowraft (-buildmode=c-shared): package client behind the functions of rowraft.h.
// The Python package calls it through ctypes.
//
//	rowraft.h   the interface; fork.c   its functions, which refuse a forked child
//	exports.go  C values ⇄ Go values
//	operation   one call: started, waited for, cancelled
//	session     one client with its tables and scans; control.go, checkpoint.go, schema.go: its calls in JSON
//	job         the client as a worker of a training job (packages trainer/mode, trainer/member); jobfind.go: what it
//	            resumes from; jobstep.go: its steps and pauses
//	localtables.go  tables in this process in the place of a client
//
// # Invariants
//
//  1. A panic of an operation ends that operation with CodeInternal, and no panic crosses into C.
//  2. An operation uses the memory of its segments until it has ended, and not after that.
//  3. What C holds is a number. A number that is not in use (any more) is an error.
//
// Each operation has a goroutine, because its caller may stop waiting. Closing a client ends its operations and
// waits for their goroutines.
package main
