package depot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// hangingCalls are calls to a depot that holds a/old, and where its disk hangs in each.
var hangingCalls = []struct {
	name  string
	fault vfs.DiskFault
	call  func(ctx context.Context, d Depot) error
}{
	{"write", vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}}, writeNew},
	{"sync", vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}}, writeNew},
	{"put", vfs.DiskFault{Ops: []vfs.Op{vfs.OpRename}}, func(ctx context.Context, d Depot) error {
		return d.Put(ctx, "a/new", []byte("new"))
	}},
	{"put a manifest", vfs.DiskFault{Ops: []vfs.Op{vfs.OpSyncDir}}, func(ctx context.Context, d Depot) error {
		return d.PutNew(ctx, "a/MANIFEST", []byte("new"))
	}},
	{"list", vfs.DiskFault{Ops: []vfs.Op{vfs.OpList}}, func(ctx context.Context, d Depot) error {
		_, err := d.List(ctx, "")
		return err
	}},
	{"open", vfs.DiskFault{Ops: []vfs.Op{vfs.OpOpen}}, readOld},
	{"read", vfs.DiskFault{Ops: []vfs.Op{vfs.OpRead}}, readOld},
	{"remove", vfs.DiskFault{Ops: []vfs.Op{vfs.OpRemove}, Path: "never"}, func(ctx context.Context, d Depot) error {
		return d.Remove(ctx, "a/never")
	}},
	{"scan", vfs.DiskFault{Ops: []vfs.Op{vfs.OpRead}, Path: "MANIFEST"}, func(ctx context.Context, d Depot) error {
		_, err := Scan(ctx, d)
		return err
	}},
}

func writeNew(ctx context.Context, d Depot) error {
	return d.Write(ctx, "a/new", func(w io.Writer) error {
		_, err := io.WriteString(w, "new")
		return err
	})
}

func readOld(ctx context.Context, d Depot) error {
	r, err := d.Open(ctx, "a/old")
	if err != nil {
		return err
	}
	_, err = io.ReadAll(r)
	return errors.Join(err, r.Close())
}

// depotOf is a depot as Open makes it, on a disk that holds a/old and a manifest.
func depotOf(t *testing.T, root string) (Depot, *vfs.Faulty, []Entry) {
	disk := vfs.NewFaulty(vfs.NewMem())
	d := &patient{NewDir(disk, root)}
	for _, name := range []string{"a/old", "b/MANIFEST"} {
		if err := d.Put(t.Context(), name, []byte("old")); err != nil {
			t.Fatal(err)
		}
	}
	before, err := d.List(t.Context(), "")
	if err != nil || len(before) != 2 {
		t.Fatalf("%v, %v", before, err)
	}
	return d, disk, before
}

// TestADepotThatHangsKeepsNobody: each call ends with its context, or when it was
// waited for in vain; and is undone should the depot do it after all.
func TestADepotThatHangsKeepsNobody(t *testing.T) {
	for _, tc := range hangingCalls {
		for _, cancelled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cancelled %v", tc.name, cancelled), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { hangOnce(t, cancelled, tc.fault, tc.call) })
			})
		}
	}
}

func hangOnce(t *testing.T, cancelled bool, fault vfs.DiskFault, call func(context.Context, Depot) error) {
	d, disk, before := depotOf(t, "/"+t.Name())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fault.Hang, fault.Name = true, "hang"
	if err := disk.Set(fault); err != nil {
		t.Fatal(err)
	}
	begun, atLeast, atMost := time.Now(), patience, writePatience+writePatience/checks
	if cancelled {
		atLeast, atMost = time.Second, time.Second+cancelGrace
		time.AfterFunc(time.Second, cancel)
	}
	err := call(ctx, d)
	if took := time.Since(begun); took < atLeast || took > atMost {
		t.Errorf("it took %v, want from %v to %v", took, atLeast, atMost)
	}
	if cancelled && !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if !cancelled && (rowraft.CodeOf(err) != rowraft.CodePrecondition ||
		!strings.Contains(err.Error(), d.String()+" hangs: ")) {
		t.Errorf("%v, want Precondition, and that %s hangs", err, d)
	}
	if disk.Done()["hang"] != 1 || stuckCalls(d.String()) != 1 {
		t.Errorf("%d operations hang, and %d calls are left behind, want one", disk.Done()["hang"], stuckCalls(d.String()))
	}
	disk.Clear()
	synctest.Wait()
	if n := stuckCalls(d.String()); n != 0 {
		t.Errorf("%d calls are stuck that have returned", n)
	}
	if after, err := d.List(t.Context(), ""); err != nil || !slices.Equal(after, before) {
		t.Errorf("%v, %v; want what was there before, %v", after, err, before)
	}
}

// TestASlowDepotIsWaitedFor: a call waits for a slow depot while it makes progress, and always for a caller that fills
// a file.
func TestASlowDepotIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, disk, before := depotOf(t, "/slow")
		if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpList, vfs.OpRead, vfs.OpRemove}, Delay: patience - time.Second},
			vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite, vfs.OpSync}, Delay: writePatience - time.Second}); err != nil {
			t.Fatal(err)
		}
		slow := func(what string, atLeast time.Duration, f func() error) {
			begun := time.Now()
			if err := f(); err != nil || time.Since(begun) < atLeast {
				t.Errorf("%s: %v after %v, want to wait more than %v", what, err, time.Since(begun), atLeast)
			}
		}
		slow("list", patience, func() error {
			after, err := d.List(t.Context(), "")
			if !slices.Equal(after, before) {
				t.Errorf("%v, want %v", after, before)
			}
			return err
		})
		slow("read", patience, func() error { return readOld(t.Context(), d) })
		slow("write", time.Hour+writePatience, func() error {
			return d.Write(t.Context(), "a/new", func(w io.Writer) error {
				time.Sleep(time.Hour) //tidy:allow sleep virtual time
				for range 3 {
					if _, err := w.Write(make([]byte, 1<<20)); err != nil {
						return err
					}
				}
				return nil
			})
		})
		slow("remove", patience, func() error { return d.Remove(t.Context(), "a/old", "a/new", "b/MANIFEST") })
	})
}

// TestADepotThatHangsTakesFewThreads, and is used again once it answers.
func TestADepotThatHangsTakesFewThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, disk, _ := depotOf(t, "/hangs")
		if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpOpen}, Hang: true, Name: "hang"}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range maxStuck + 5 {
			if err := readOld(t.Context(), d); rowraft.CodeOf(err) != rowraft.CodePrecondition {
				t.Errorf("%v, want Precondition", err)
			}
		}
		if n, took := disk.Done()["hang"], time.Since(begun); n != maxStuck || took != patience+(maxStuck-1)*knownPatience {
			t.Errorf("%d calls hang, after %v; want %d, and those behind them refused at once", n, took, maxStuck)
		}
		disk.Clear()
		synctest.Wait()
		if err := readOld(t.Context(), d); err != nil {
			t.Errorf("it answers again: %v", err)
		}
	})
}

// While a call to a depot hangs, the next ones are given up sooner: other checkpoints wait for them.
func TestADepotThatIsKnownToHangIsGivenUpSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, disk, _ := depotOf(t, "/"+t.Name())
		if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Hang: true, Name: "hang"}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []time.Duration{writePatience, knownPatience} {
			begun := time.Now()
			if err := writeNew(t.Context(), d); err == nil || !strings.Contains(err.Error(), "hangs") ||
				time.Since(begun) < want || time.Since(begun) > want+want/10 {
				t.Errorf("%v after %v, want that it hangs after %v", err, time.Since(begun), want)
			}
		}
		disk.Clear()
		synctest.Wait()
		if err := writeNew(t.Context(), d); err != nil {
			t.Errorf("it answers again: %v", err)
		}
	})
}
