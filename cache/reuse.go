package cache

import "time"

// Reuse states which copies of rows are new enough. The zero Reuse uses and makes none.
type Reuse struct {
	MaxAge time.Duration // how long before this call the copy was asked for

	// Now and Since, without MaxAge, are in a unit of the caller's that never falls, such as steps. The rows that are
	// pulled become copies as of Now; copies as of Since, or later, are new enough.
	Now, Since uint64
}

// ByAge reports whether the limit is an age.
func (r *Reuse) ByAge() bool { return r.MaxAge > 0 }

// Limits returns Now and Since, for an age in nanoseconds on clock, which is read only for it; 0 and 0 if r allows no
// copies.
func (r *Reuse) Limits(clock func() uint64) (now, since uint64) {
	if !r.ByAge() {
		return r.Now, r.Since
	}
	now = clock()
	return now, now - min(uint64(r.MaxAge), now)
}
