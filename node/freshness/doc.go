// Package freshness proves how old the state of a replica may be, so that any replica can serve reads of bounded
// staleness.
//
//	read ─► Tracker.Await ─► (probe of the leader) ─► Lease: everything acknowledged before a moment is applied here
//
// The age counts on this process's clocks, from before the probe. So no other clock, no delay and no pause makes the
// state look younger than it is.
package freshness
