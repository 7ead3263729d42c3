package scheduler

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

func count[T any](list []T, is func(T) bool) (n int) {
	for _, x := range list {
		if is(x) {
			n++
		}
	}
	return n
}

// tb is what the tests and the fuzz targets have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// invent adds a version to those that this binary understands, until the test ends.
func invent(t *testing.T) rowraft.FormatVersion {
	next, forget := wire.InventVersion()
	t.Cleanup(forget)
	return next
}

// on lists the nodes of replicas.
func on(rs []clustermap.Replica) string {
	out := ""
	for _, r := range rs {
		out += string(r.Node)
	}
	return out
}
