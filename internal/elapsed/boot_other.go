//go:build !linux

package elapsed

// BootTime returns 0: there is no such clock here.
func BootTime() int64 { return 0 }
