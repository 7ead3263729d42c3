package sim

import (
	"flag"
	"testing"
	"testing/synctest"
)

// Bubble runs f in a bubble of testing/synctest, outside `go test`, and returns when
// the bubble has ended. A bubble that hangs, or leaves goroutines, ends the process
// with their stacks. It may be called once in a process, by a main package: it takes
// the process's flags for its own.
//
// A channel made outside the bubble must not be waited for in it: virtual time would
// stand still.
func Bubble(f func()) {
	testing.Init()
	_ = flag.CommandLine.Parse([]string{"-test.timeout=0"})
	ended := make(chan struct{})
	run := func(t *testing.T) {
		synctest.Test(t, func(*testing.T) { f() })
		close(ended)
		select {} // testing.Main would end the process
	}
	any := func(_, _ string) (bool, error) { return true, nil }
	go testing.Main(any, []testing.InternalTest{{Name: "bubble", F: run}}, nil, nil)
	<-ended
}
