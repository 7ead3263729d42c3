package vfs

import (
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"unsafe"
)

// memFile is an open file of a Mem. The mutex of the disk guards all fields except disk, node, name and flag.
type memFile struct {
	disk   *Mem
	node   *memNode
	name   string
	flag   int
	pos    int64
	closed bool
	blocks bool // only whole blocks may be written
}

func (f *memFile) Name() string { return f.name }

// begin locks the disk for op.
func (f *memFile) begin(op string, write bool) error {
	f.disk.mu.Lock()
	err := error(nil)
	mode := f.flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	switch {
	case f.disk.mu.down:
		err = ErrCrashed
	case f.closed:
		err = fs.ErrClosed
	case write && mode == os.O_RDONLY, !write && mode == os.O_WRONLY && op == "read":
		err = syscall.EBADF
	}
	if err != nil {
		f.disk.mu.Unlock()
		return pathError(op, f.name, err)
	}
	return nil
}

func (f *memFile) end() { f.disk.mu.Unlock() }

func (f *memFile) direct(on bool) bool {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.blocks = on
	return on
}

func (f *memFile) Read(p []byte) (int, error) {
	if err := f.begin("read", false); err != nil {
		return 0, err
	}
	defer f.end()
	n, err := f.node.readAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *memFile) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.begin("read", false); err != nil {
		return 0, err
	}
	defer f.end()
	if offset < 0 {
		return 0, pathError("read", f.name, syscall.EINVAL)
	}
	return f.node.readAt(p, offset)
}

// readAt returns io.EOF if it does not fill p.
func (n *memNode) readAt(p []byte, offset int64) (int, error) {
	if offset >= n.size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	short := n.size-offset < int64(len(p))
	if short {
		p = p[:n.size-offset]
	}
	done := 0
	if offset < int64(len(n.data)) {
		done = copy(p, n.data[offset:])
	}
	clear(p[done:])
	if short {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (f *memFile) Write(p []byte) (int, error) {
	if err := f.begin("write", true); err != nil {
		return 0, err
	}
	defer f.end()
	if f.flag&os.O_APPEND != 0 {
		f.pos = f.node.size
	}
	n, err := f.writeLocked(p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *memFile) WriteAt(p []byte, offset int64) (int, error) {
	if err := f.begin("write", true); err != nil {
		return 0, err
	}
	defer f.end()
	if offset < 0 {
		return 0, pathError("write", f.name, syscall.EINVAL)
	}
	return f.writeLocked(p, offset)
}

// writeLocked writes as much as the limit of the disk allows, as write(2) does.
func (f *memFile) writeLocked(p []byte, offset int64) (int, error) {
	if f.blocks && (offset|int64(len(p))|int64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))))%directBlock != 0 {
		return 0, pathError("write", f.name, syscall.EINVAL)
	}
	n, fits := f.node, p
	if grow := offset + int64(len(p)) - n.size; grow > 0 {
		if room := f.disk.roomLocked(); room < grow {
			fits = p[:max(0, int64(len(p))-(grow-room))]
		}
	}
	if len(fits) > 0 {
		end := offset + int64(len(fits))
		f.disk.mu.used += max(0, end-n.size)
		n.size = max(n.size, end)
		n.data = overwrite(n.data, fits, offset)
		n.changes = append(n.changes, memChange{data: slices.Clone(fits), offset: offset, size: n.size})
	}
	if len(fits) < len(p) {
		f.disk.mu.refused++
		return len(fits), pathError("write", f.name, syscall.ENOSPC)
	}
	return len(p), nil
}

// overwrite returns data with p at offset.
func overwrite(data, p []byte, offset int64) []byte {
	if grow := int(offset) + len(p) - len(data); grow > 0 {
		data = slices.Grow(data, grow)
		old := len(data)
		data = data[:old+grow]
		clear(data[old:])
	}
	copy(data[offset:], p)
	return data
}

func (m *Mem) roomLocked() int64 {
	if m.mu.limit == 0 {
		return 1 << 60
	}
	return max(0, m.mu.limit-m.mu.used)
}

func (f *memFile) Truncate(size int64) error {
	if err := f.begin("truncate", true); err != nil {
		return err
	}
	defer f.end()
	return f.resize("truncate", size)
}

func (f *memFile) Allocate(size int64) error {
	if err := f.begin("allocate", true); err != nil {
		return err
	}
	defer f.end()
	if size <= f.node.size {
		return nil
	}
	return f.resize("allocate", size)
}

func (f *memFile) resize(op string, size int64) error {
	switch {
	case size < 0:
		return pathError(op, f.name, syscall.EINVAL)
	case size-f.node.size > f.disk.roomLocked():
		f.disk.mu.refused++
		return pathError(op, f.name, syscall.ENOSPC)
	}
	f.disk.resizeLocked(f.node, size)
	return nil
}

func (m *Mem) resizeLocked(n *memNode, size int64) {
	m.mu.used += size - n.size
	n.size = size
	n.data = cut(n.data, size)
	n.changes = append(n.changes, memChange{size: size, resized: true})
}

// cut returns data without the bytes from size on.
func cut(data []byte, size int64) []byte {
	return data[:min(int64(len(data)), size)]
}

func (f *memFile) Sync() error {
	if err := f.begin("sync", false); err != nil {
		return err
	}
	defer f.end()
	n := f.node
	for _, c := range n.changes {
		switch {
		case c.resized:
			n.synced = cut(n.synced, c.size)
		case !c.lost:
			n.synced = overwrite(n.synced, c.data, c.offset)
		}
	}
	n.syncedSize, n.changes = n.size, nil
	return nil
}

// FailSync simulates a failed sync on Linux: the pages that were not written count as clean. The process
// can read them, a later Sync succeeds without writing them, and a power loss loses them.
func (f *memFile) FailSync() {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	for i := range f.node.changes {
		f.node.changes[i].lost = true
	}
}

func (f *memFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.disk.closeLocked(f)
	if f.disk.mu.down {
		return pathError("close", f.name, ErrCrashed)
	}
	return nil
}

func (m *Mem) closeLocked(f *memFile) {
	f.closed = true
	m.mu.handles--
	f.node.opens--
	if f.node.opens == 0 && !f.node.linked {
		m.mu.used -= f.node.size
	}
}
