//go:build rowraft_canary

package canary

import (
	"fmt"
	"os"
	"slices"
)

var active = func() Name {
	n := Name(os.Getenv("ROWRAFT_CANARY"))
	all := []Name{"", AckBeforeCommit, ForgetSessions, SkipFsync, StaleReads, YoungClaims, MapOrder, RestoreInPlace,
		PipelinedAppends, HeartbeatFastPath, FollowerMisapplies, LeaderMisapplies, KeepDeleted, MemoryRots}
	if !slices.Contains(all, n) {
		panic(fmt.Sprintf("ROWRAFT_CANARY=%s: want one of %q", n, all[1:]))
	}
	fmt.Fprintf(os.Stderr, "this build can break its promises on purpose; now: %q\n", n)
	return n
}()

// Is reports whether this process breaks the promise n.
func Is(n Name) bool { return active == n }

// Order is 0 … n-1 in the order of a map.
func Order(n int) []int {
	set := make(map[int]struct{}, n)
	for i := range n {
		set[i] = struct{}{}
	}
	out := make([]int, 0, n)
	for i := range set {
		out = append(out, i)
	}
	return out
}
