//go:build !rowraft_canary

package canary

// Is reports whether this process breaks the promise n. Without the build tag
// rowraft_canary none does.
func Is(Name) bool { return false }

// Order is 0 … n-1 in the order of a map.
func Order(n int) []int { panic("canary.Order in a build without rowraft_canary") }
