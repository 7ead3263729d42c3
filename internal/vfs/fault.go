package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Op is a kind of operation on a disk.
type Op string

// The kinds. The kinds up to OpLock change the disk, or the state after a crash: they are steps.
const (
	OpMkdir    Op = "mkdir"
	OpCreate   Op = "create" // OpenFile that may create or truncate a file
	OpWrite    Op = "write"
	OpTruncate Op = "truncate"
	OpAllocate Op = "allocate"
	OpSync     Op = "sync"
	OpSyncDir  Op = "syncdir"
	OpRemove   Op = "remove"
	OpRename   Op = "rename" // its path is the new one
	OpLock     Op = "lock"
	OpOpen     Op = "open" // OpenFile of an existing file
	OpRead     Op = "read"
	OpList     Op = "list" // ReadDir, Stat
	OpFree     Op = "free"
	// OpLog is not an operation of FS, but WaitLog.
	OpLog Op = "log"
)

var allOps = []Op{OpMkdir, OpCreate, OpWrite, OpTruncate, OpAllocate, OpSync, OpSyncDir, OpRemove, OpRename, OpLock,
	OpOpen, OpRead, OpList, OpFree, OpLog}

// DiskFault is a fault of a disk: matching operations fail, are delayed or hang. ROWRAFT_DISK_FAULTS holds
// a JSON list of such faults.
type DiskFault struct {
	// Name identifies the fault in logs and counters; empty: it is derived from the other fields.
	Name string `json:"name,omitempty"`
	// Ops are the operations that the fault affects; none: all that write or sync.
	Ops []Op `json:"ops,omitempty"`
	// Path is a pattern of filepath.Match. It is compared with as many last elements of the path as it has
	// itself: "*.seg", "log/META", "groups/shard-3/*/*". Empty: any path.
	Path string `json:"path,omitempty"`
	// After is how many matching operations succeed first.
	After int `json:"after,omitempty"`
	// Times is how many operations are affected after that; 0: all.
	Times int `json:"times,omitempty"`

	// Err is "EIO" or "ENOSPC"; the operation is not done. A write that fails with ENOSPC has written its
	// first half, as on a full disk. After a failed sync a Mem loses the bytes that were not synced, even
	// if a later sync succeeds.
	Err string `json:"err,omitempty"`
	// Delay is the time to wait before the operation, in nanoseconds.
	Delay time.Duration `json:"delay_ns,omitempty"`
	// Hang blocks the operation until the fault is cleared; then the operation is done.
	Hang bool `json:"hang,omitempty"`
}

func (f *DiskFault) validate() error {
	for _, op := range f.Ops {
		if !slices.Contains(allOps, op) {
			return fmt.Errorf("disk fault %s: operation %q: want one of %v", f.Name, op, allOps)
		}
	}
	if _, err := filepath.Match(f.Path, ""); err != nil {
		return fmt.Errorf("disk fault %s: path %q: %w", f.Name, f.Path, err)
	}
	if f.Err != "" && faultErrors[f.Err] == nil {
		return fmt.Errorf("disk fault %s: error %q: want EIO or ENOSPC", f.Name, f.Err)
	}
	if f.Err == "" && f.Delay <= 0 && !f.Hang {
		return fmt.Errorf("disk fault %s has no effect: give err, delay_ns or hang", f.Name)
	}
	return nil
}

var faultErrors = map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC}

// writing are the operations that a fault without Ops affects.
var writing = []Op{OpMkdir, OpCreate, OpWrite, OpTruncate, OpAllocate, OpSync, OpSyncDir, OpRename}

func (f *DiskFault) matches(op Op, name string) bool {
	ops := f.Ops
	if len(ops) == 0 {
		ops = writing
	}
	if !slices.Contains(ops, op) {
		return false
	}
	if f.Path == "" {
		return true
	}
	want, have := split(f.Path), split(name)
	if len(have) < len(want) {
		return false
	}
	ok, _ := filepath.Match(filepath.Join(want...), filepath.Join(have[len(have)-len(want):]...))
	return ok
}

// Step is an operation that changes the disk, before it happens.
type Step struct {
	N    int // from 1
	Op   Op
	Path string
}

func (s Step) String() string { return fmt.Sprintf("step %d, %s %s", s.N, s.Op, s.Path) }

// Faulty is a disk that injects faults. Safe for concurrent use; it starts no goroutine.
type Faulty struct {
	disk FS

	mu struct {
		sync.Mutex
		faults []*activeFault
		done   map[string]int // by name, including cleared faults
		steps  int
		onStep func(Step)
		onDone func(fault DiskFault, op Op, path string)
	}
}

// activeFault is a fault in effect.
type activeFault struct {
	DiskFault
	seen    int
	did     int
	cleared chan struct{}
}

// NewFaulty wraps disk.
func NewFaulty(disk FS) *Faulty {
	f := &Faulty{disk: disk}
	f.mu.done = map[string]int{}
	return f
}

// Set replaces the faults. A fault that was set before and is in the new list keeps its counts; operations
// that hang in a fault that is not in the new list continue. An invalid fault changes nothing.
func (f *Faulty) Set(faults ...DiskFault) error {
	var next []*activeFault
	for _, d := range faults {
		if d.Name == "" {
			d.Name = fmt.Sprintf("%v %s %s%s", d.Ops, d.Path, d.Err, map[bool]string{true: "hang"}[d.Hang])
		}
		if err := d.validate(); err != nil {
			return err
		}
		next = append(next, &activeFault{DiskFault: d, cleared: make(chan struct{})})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, old := range f.mu.faults {
		i := slices.IndexFunc(next, func(n *activeFault) bool { return equalFault(&n.DiskFault, &old.DiskFault) })
		if i >= 0 {
			next[i] = old
		} else {
			close(old.cleared)
		}
	}
	f.mu.faults = next
	return nil
}

func equalFault(a, b *DiskFault) bool {
	x, y := *a, *b
	x.Ops, y.Ops = nil, nil
	return slices.Equal(a.Ops, b.Ops) && fmt.Sprintf("%+v", x) == fmt.Sprintf("%+v", y)
}

// Clear removes all faults.
func (f *Faulty) Clear() { _ = f.Set() }

// Done returns how many operations each fault has affected so far, by its name, including cleared faults.
func (f *Faulty) Done() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]int, len(f.mu.done))
	for name, n := range f.mu.done {
		out[name] = n
	}
	return out
}

// OnDone makes f call hook whenever a fault affects an operation: before the operation hangs, waits or fails.
func (f *Faulty) OnDone(hook func(fault DiskFault, op Op, path string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.onDone = hook
}

// OnStep makes f call hook before each step. hook may prevent the step by stopping the disk. Steps are
// numbered from 1 since the last OnStep. hook runs on the goroutine of the operation, for one step at a
// time, and must not call f.
func (f *Faulty) OnStep(hook func(Step)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.onStep, f.mu.steps = hook, 0
}

// Steps returns the number of steps since the last OnStep.
func (f *Faulty) Steps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.steps
}

// before applies the faults for an operation, and returns the error with which it must fail, or nil.
func (f *Faulty) before(op Op, name string) error {
	f.mu.Lock()
	if op.changes() {
		f.mu.steps++
		if f.mu.onStep != nil {
			f.mu.onStep(Step{f.mu.steps, op, name})
		}
	}
	var hits []*activeFault
	for _, a := range f.mu.faults {
		if !a.matches(op, name) {
			continue
		}
		a.seen++
		if a.seen > a.After && (a.Times == 0 || a.did < a.Times) {
			a.did++
			f.mu.done[a.Name]++
			hits = append(hits, a)
		}
	}
	onDone := f.mu.onDone
	f.mu.Unlock()
	var err error
	for _, a := range hits {
		if onDone != nil {
			onDone(a.DiskFault, op, name)
		}
		if hit := a.wait(op, name); hit != nil {
			err = errors.Join(err, hit)
		}
	}
	return err
}

// wait waits as long as the fault requires.
func (a *activeFault) wait(op Op, name string) error {
	if a.Delay > 0 {
		t := time.NewTimer(a.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-a.cleared:
		}
	}
	if a.Hang {
		<-a.cleared
	}
	if a.Err == "" {
		return nil
	}
	return pathError(string(op), name, faultErrors[a.Err])
}

func (op Op) changes() bool {
	i := slices.Index(allOps, op)
	return i <= slices.Index(allOps, OpLock)
}

// Mkdir implements FS.
func (f *Faulty) Mkdir(dir string) error {
	if err := f.before(OpMkdir, dir); err != nil {
		return err
	}
	return f.disk.Mkdir(dir)
}

// OpenFile implements FS.
func (f *Faulty) OpenFile(name string, flag int) (File, error) {
	op := OpOpen
	if flag&(os.O_CREATE|os.O_TRUNC) != 0 {
		op = OpCreate
	}
	if err := f.before(op, name); err != nil {
		return nil, err
	}
	file, err := f.disk.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, disk: f}, nil
}

// Remove implements FS.
func (f *Faulty) Remove(name string) error {
	if err := f.before(OpRemove, name); err != nil {
		return err
	}
	return f.disk.Remove(name)
}

// Rename implements FS.
func (f *Faulty) Rename(from, to string) error {
	if err := f.before(OpRename, to); err != nil {
		return err
	}
	return f.disk.Rename(from, to)
}

// ReadDir implements FS.
func (f *Faulty) ReadDir(dir string) ([]fs.DirEntry, error) {
	if err := f.before(OpList, dir); err != nil {
		return nil, err
	}
	return f.disk.ReadDir(dir)
}

// Stat implements FS.
func (f *Faulty) Stat(name string) (fs.FileInfo, error) {
	if err := f.before(OpList, name); err != nil {
		return nil, err
	}
	return f.disk.Stat(name)
}

// SyncDir implements FS.
func (f *Faulty) SyncDir(dir string) error {
	if err := f.before(OpSyncDir, dir); err != nil {
		return err
	}
	return f.disk.SyncDir(dir)
}

// Lock implements FS.
func (f *Faulty) Lock(name string) (io.Closer, error) {
	if err := f.before(OpLock, name); err != nil {
		return nil, err
	}
	return f.disk.Lock(name)
}

// Free implements FS. With a fault of ENOSPC it returns 0.
func (f *Faulty) Free(dir string) (int64, error) {
	if err := f.before(OpFree, dir); errors.Is(err, syscall.ENOSPC) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return f.disk.Free(dir)
}

// WaitLog implements LogWaiter: it applies faults of OpLog with Delay or Hang.
func (f *Faulty) WaitLog(dir string) { _ = f.before(OpLog, dir) }

// FailSync informs a file that its Sync failed, if the disk of the file simulates the loss of data in that case.
func FailSync(f File) {
	if d, ok := f.(interface{ FailSync() }); ok {
		d.FailSync()
	}
}

type faultyFile struct {
	File
	disk   *Faulty
	blocks bool // only whole blocks may be written
}

func (f *faultyFile) Read(p []byte) (int, error) {
	if err := f.disk.before(OpRead, f.Name()); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

func (f *faultyFile) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.disk.before(OpRead, f.Name()); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, offset)
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.disk.before(OpWrite, f.Name()); err != nil {
		if !errors.Is(err, syscall.ENOSPC) {
			return 0, err
		}
		n, werr := f.File.Write(p[:len(p)/2])
		return n, errors.Join(err, werr)
	}
	return f.File.Write(p)
}

func (f *faultyFile) WriteAt(p []byte, offset int64) (int, error) {
	if err := f.disk.before(OpWrite, f.Name()); err != nil {
		if !errors.Is(err, syscall.ENOSPC) {
			return 0, err
		}
		half := len(p) / 2
		if f.blocks {
			half &^= directBlock - 1
		}
		n, werr := f.File.WriteAt(p[:half], offset)
		return n, errors.Join(err, werr)
	}
	return f.File.WriteAt(p, offset)
}

func (f *faultyFile) direct(on bool) bool {
	d, ok := f.File.(directer)
	f.blocks = ok && d.direct(on)
	return f.blocks
}

func (f *faultyFile) Sync() error {
	if err := f.disk.before(OpSync, f.Name()); err != nil {
		FailSync(f.File)
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.disk.before(OpTruncate, f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultyFile) Allocate(size int64) error {
	if err := f.disk.before(OpAllocate, f.Name()); err != nil {
		return err
	}
	return f.File.Allocate(size)
}
