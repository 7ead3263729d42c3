// Package elapsed measures ages that are never too low: also time counts in which the machine sleeps.
//
// Go's monotonic clock stops while the machine sleeps. The kernel's boot clock does not, but tests in virtual time do
// not control it. So an age is what the clock that shows more says. Neither clock is ever set, and both run while a
// process is stopped.
package elapsed
