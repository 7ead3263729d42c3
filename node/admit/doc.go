// Package admit bounds the memory that a server uses for its clients: the bytes of writes and replies in
// flight, and the memory of the process. It refuses requests above the limits at once, with a
// CodeOverloaded error that contains a time to wait. It queues nothing.
//
//	node ──Write, Admit──► Admission ──► Ticket ──Release──► when the write is applied, the reply is taken
//	     ──Early─────────► the same question before a body is read; takes no room
//	GuardMemory ─────────► refuses what makes rows when the process is nearly full
//
// # Concurrency
//
// An Admission and its tickets are safe for concurrent use. Lock order: Admission.mu is held for some map lookups and
// never across a call out of this package. The package starts no goroutine; GuardMemory runs on its caller's.
package admit
