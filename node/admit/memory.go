package admit

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/rowraft/rowraft"
)

// FreeMemory returns how much more memory this process may use: the lower of what the machine has free and
// what the process's cgroups (version 2) allow. 0 is unknown. GOMEMLIMIT does not count: rows are not on
// the heap that it limits.
func FreeMemory(root fs.FS) uint64 {
	free := available(root)
	if limit := cgroupLimit(root); limit > 0 {
		left := uint64(1) // 1 means: none, but known
		if used := residentBytes(root); limit > used {
			left = limit - used
		}
		if free == 0 || left < free {
			free = left
		}
	}
	return free
}

// available returns MemAvailable of /proc/meminfo.
func available(root fs.FS) uint64 { return meminfo(root, "MemAvailable:") }

// meminfo returns the value of a line of /proc/meminfo, in bytes; 0 if there is none.
func meminfo(root fs.FS, line string) uint64 {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), line); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 50)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// cgroupLimit returns the lowest memory.max from the process's cgroup up to the root; 0 if there is none.
func cgroupLimit(root fs.FS) (limit uint64) {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok {
			continue
		}
		for at := path.Clean(group); ; at = path.Dir(at) {
			if b, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", at, "memory.max")); err == nil {
				if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && (limit == 0 || n < limit) {
					limit = n
				}
			}
			if at == "." {
				break
			}
		}
	}
	return limit
}

func residentBytes(root fs.FS) uint64 {
	b, err := fs.ReadFile(root, "proc/self/statm")
	if fields := strings.Fields(string(b)); err == nil && len(fields) > 1 {
		if pages, err := strconv.ParseUint(fields[1], 10, 50); err == nil {
			return pages * uint64(os.Getpagesize())
		}
	}
	return 0
}

// machineMemory returns the memory limit of this process: that of its cgroup or, without one, the memory of
// the machine; 0 is unknown.
func machineMemory(root fs.FS) uint64 {
	total := meminfo(root, "MemTotal:")
	if limit := cgroupLimit(root); limit > 0 && (total == 0 || limit < total) {
		return limit
	}
	return total
}

// SetDefaults sets the limits that are zero.
func (l *Limits) SetDefaults(root fs.FS) error {
	for _, given := range []struct {
		name  string
		bytes int64
	}{{"memory limit", l.Memory}, {"bytes in flight", l.InFlight}, {"bytes in flight of a shard", l.Shard},
		{"bytes in flight of a client", l.Client}} {
		if given.bytes < 0 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: %d: want 0 (the default) or more", given.name, given.bytes)
		}
	}
	if l.Memory == 0 {
		l.Memory = int64(min(machineMemory(root), math.MaxInt64))
	}
	if l.InFlight == 0 {
		l.InFlight = max(64<<20, min(l.Memory/16, 1<<30))
	}
	if l.Shard == 0 {
		l.Shard = max(1, l.InFlight/2)
	}
	if l.Client == 0 {
		l.Client = max(1, l.InFlight/4)
	}
	return nil
}
