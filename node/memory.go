package node

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// freeMemory is how much more this process may take, as far as the machine tells:
// what it has left, and what the cgroups of the process leave it (version 2). 0 is
// unknown. GOMEMLIMIT does not count: rows are off the heap that it limits.
func freeMemory(root fs.FS) uint64 {
	free := available(root)
	if limit := cgroupLimit(root); limit > 0 {
		left := uint64(1) // none, and known
		if used := residentBytes(root); limit > used {
			left = limit - used
		}
		if free == 0 || left < free {
			free = left
		}
	}
	return free
}

// available reads MemAvailable.
func available(root fs.FS) uint64 {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 50)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// cgroupLimit is the lowest memory.max from the process's cgroup up to the root; 0 if
// there is none.
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
