package vfstest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

// Script is what is crashed. A is what a caller was told is durable; it is copied
// by assignment.
type Script[A any] struct {
	// Disk returns what there was before; nil: an empty disk.
	Disk func() *vfs.Mem
	// Run does the work until it is done or an operation fails. It notes in acked
	// what it was told, at the moment it was told.
	Run func(disk vfs.FS, acked *A) error
	// Check opens what Run left and returns an error unless it is whole and has all
	// that was acknowledged. It returns what a next check must find, also when an
	// operation failed: acked, and what was read or written here.
	Check func(disk vfs.FS, acked A) (A, error)
	// Seeds is how many power losses are tried at each step; at least 2.
	Seeds int
	// Shallow leaves out the crashes during the check.
	Shallow bool
}

// Count says how much was tried.
type Count struct{ Steps, States int }

// Crashes fails t at the first state that the check refuses, and logs how many
// there were. Then it leaves out the syncs of each place in turn, and fails t for a
// place that no check misses. spare lists the places that none need miss, each with
// its reason; a key stands for all places that begin with it.
func Crashes[A any](t *testing.T, s Script[A], spare map[string]string) {
	t.Helper()
	e := explorer[A]{script: s, sites: map[string]int{}}
	if err := e.explore(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d steps, %d crash states", e.steps, e.states)
	reasons := map[string]string{}
	for prefix, why := range spare {
		n := len(reasons)
		for site := range e.sites {
			if strings.HasPrefix(site, prefix) {
				reasons[site] = why
			}
		}
		if len(reasons) == n {
			t.Errorf("%q is spared but never done", prefix)
		}
	}
	if stride > 1 {
		return
	}
	for _, site := range slices.Sorted(maps.Keys(e.sites)) {
		if why := reasons[site]; why != "" {
			t.Logf("without %q nothing needs to be missed: %s", site, why)
			continue
		}
		without := explorer[A]{script: s, sites: map[string]int{}, skip: site}
		if err := without.explore(); err != nil {
			t.Logf("without %q: %v", site, err)
		} else {
			t.Errorf("without %q nothing is missed in %d crash states", site, without.states)
		}
	}
}

type explorer[A any] struct {
	script Script[A]
	skip   string // the place whose syncs are left out

	steps, states int

	mu    sync.Mutex
	sites map[string]int // places that synced
}

func (e *explorer[A]) disk() *vfs.Mem {
	if e.script.Disk == nil {
		return vfs.NewMem()
	}
	return e.script.Disk()
}

// on stands the script's disk on mem, which goes down before step n; 0: never.
func (e *explorer[A]) on(mem *vfs.Mem, n int) *vfs.Faulty {
	d := vfs.NewFaulty(&forgetful[A]{FS: mem, e: e})
	d.OnStep(func(s vfs.Step) {
		if s.N == n {
			mem.Stop()
		}
	})
	return d
}

func (e *explorer[A]) explore() error {
	var acked A
	whole := e.on(e.disk(), 0)
	if err := e.script.Run(whole, &acked); err != nil {
		return fmt.Errorf("without a crash: %w", err)
	}
	e.steps = whole.Steps()
	for n := 1; n <= e.steps+1; n += stride {
		if err := e.crashAt(n); err != nil {
			return fmt.Errorf("crash before step %d of %d: %w", n, e.steps, err)
		}
	}
	return e.failedSyncs()
}

func (e *explorer[A]) crashAt(n int) error {
	mem := e.disk()
	var acked A
	disk := e.on(mem, n)
	err := e.script.Run(disk, &acked)
	if n > disk.Steps() && err != nil {
		return err
	}
	for seed := range uint64(e.script.Seeds) {
		if _, err := e.check(mem.Crash(seed), acked); err != nil {
			return fmt.Errorf("power lost, seed %d: %w", seed, err)
		}
	}
	if err := e.killed(mem, acked); err != nil {
		return fmt.Errorf("process killed: %w", err)
	}
	if e.script.Shallow {
		return nil
	}
	return e.crashAgain(mem, acked)
}

// check runs the check with no further crash.
func (e *explorer[A]) check(mem *vfs.Mem, acked A) (A, error) {
	e.states++
	return e.script.Check(e.on(mem, 0), acked)
}

// killed has the next process find everything, and then loses the power.
func (e *explorer[A]) killed(mem *vfs.Mem, acked A) error {
	next := mem.Kill()
	seen, err := e.check(next, acked)
	if err != nil {
		return err
	}
	for seed := range uint64(2) {
		if _, err := e.check(next.Crash(2*seed), seen); err != nil {
			return fmt.Errorf("then power lost, seed %d: %w", 2*seed, err)
		}
	}
	return nil
}

// failedSyncs has each sync of a file fail in turn. The process ends, the next one
// finds what was written, and then the power is lost: after that process, and, if a
// sync of that one failed too, after a third.
func (e *explorer[A]) failedSyncs() error {
	for k := 0; ; k += stride {
		mem := e.disk()
		var acked A
		disk := e.failing(mem, k)
		_ = e.script.Run(disk, &acked)
		if len(disk.Done()) == 0 {
			return nil
		}
		if err := e.killed(mem, acked); err != nil {
			return fmt.Errorf("sync %d fails: %w", k+1, err)
		}
		for m := 0; !e.script.Shallow; m++ {
			again := mem.Kill()
			disk := e.failing(again, m)
			seen, _ := e.script.Check(disk, acked)
			if len(disk.Done()) == 0 {
				break
			}
			if err := e.killed(again, seen); err != nil {
				return fmt.Errorf("sync %d fails, and sync %d of the recovery: %w", k+1, m+1, err)
			}
		}
	}
}

// failing stands the script's disk on mem; the sync of a file after the first k fails.
func (e *explorer[A]) failing(mem *vfs.Mem, k int) *vfs.Faulty {
	d := e.on(mem, 0)
	if err := d.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, After: k, Times: 1, Err: "EIO"}); err != nil {
		panic(err)
	}
	return d
}

// crashAgain loses the power before each step of the recovery from a power loss.
func (e *explorer[A]) crashAgain(mem *vfs.Mem, acked A) error {
	for _, seed := range []uint64{vfs.LoseUnsynced, 2} {
		for m := 1; ; m++ {
			first := mem.Crash(seed)
			disk := e.on(first, m)
			seen, _ := e.script.Check(disk, acked)
			if disk.Steps() < m {
				break
			}
			if _, err := e.check(first.Crash(seed), seen); err != nil {
				return fmt.Errorf("power lost, seed %d, and again before step %d of the recovery: %w", seed, m, err)
			}
		}
	}
	return nil
}

// forgetful leaves out the syncs of one place.
type forgetful[A any] struct {
	vfs.FS
	e *explorer[A]
}

// forgets notes where a sync came from and reports whether it is left out.
func (f *forgetful[A]) forgets(op vfs.Op, path string) bool {
	site := place(op, path)
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	f.e.sites[site]++
	return site == f.e.skip
}

func (f *forgetful[A]) SyncDir(dir string) error {
	if f.forgets(vfs.OpSyncDir, dir) {
		_, err := f.FS.Stat(dir)
		return err
	}
	return f.FS.SyncDir(dir)
}

func (f *forgetful[A]) OpenFile(name string, flag int) (vfs.File, error) {
	file, err := f.FS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &forgetfulFile[A]{file, f}, nil
}

type forgetfulFile[A any] struct {
	vfs.File
	disk *forgetful[A]
}

func (f *forgetfulFile[A]) Sync() error {
	if f.disk.forgets(vfs.OpSync, f.Name()) {
		return f.Truncate(-1 << 62)
	}
	return f.File.Sync()
}

// FailSync implements what vfs.FailSync looks for.
func (f *forgetfulFile[A]) FailSync() { vfs.FailSync(f.File) }

// Truncate answers the impossible length of a forgotten Sync with an error only if
// the machine is down.
func (f *forgetfulFile[A]) Truncate(size int64) error {
	err := f.File.Truncate(size)
	if size == -1<<62 && !errors.Is(err, vfs.ErrCrashed) && !errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

var digits = regexp.MustCompile(`[0-9][0-9a-f]*(-[0-9a-f]+)*`)

// place names the function that synced and the kind of path: several syncs in one
// function are told apart by what they sync.
func place(op vfs.Op, path string) string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		name := strings.TrimPrefix(f.Function, "github.com/rowraft/rowraft/")
		if !strings.HasPrefix(name, "internal/vfs") || !more {
			return fmt.Sprintf("%s: %s %s", name, op, digits.ReplaceAllString(filepath.Base(path), "N"))
		}
	}
}
