package scheduler

import (
	"bytes"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
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

func sgd(name string, dim int) rowraft.Schema {
	return rowraft.Schema{
		Name: name, Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
}

func cmdIncarnation() *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_IssueIncarnation{
		IssueIncarnation: &rowraftv1.MetaIssueIncarnation{}}}
}

func cmdDrop(name string, id uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DropTable{DropTable: &rowraftv1.MetaDropTable{Name: name,
		Id: id}}}
}

func begin(id byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{
		BeginRestore: &rowraftv1.MetaBeginRestore{Id: bytes.Repeat([]byte{id}, 16)}}}
}

func restoredTable(id rowraft.TableID, name string) rowraft.Schema {
	return rowraft.Schema{
		ID: id, Name: name, Kind: rowraft.Sparse, Dim: 2,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
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

// eventually polls what another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within three minutes: %s", what)
		case <-tick.C:
		}
	}
}
