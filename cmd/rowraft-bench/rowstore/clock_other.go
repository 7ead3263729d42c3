//go:build !linux

package rowstore

import (
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
)

var started = time.Now()

// threadTime is the time of the clock where threads have no clock of their own.
func threadTime() time.Duration { return time.Since(started) }

// threadWaits is not known here.
func threadWaits() int64 { return 0 }

// newMemory likewise.
func newMemory(func(figures.Figure)) error { return nil }
