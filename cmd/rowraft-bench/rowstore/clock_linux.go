package rowstore

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
)

// threadTime returns the CPU time of the calling thread, time in the kernel
// included.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(ts.Nano())
}

// threadWaits returns how often the calling thread has given up its processor to
// wait for something.
func threadWaits() int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		panic(err)
	}
	return r.Nvcsw
}

// newMemory reports how long the kernel takes for the first touch of 2 MiB that may be
// one huge page: clearing it is 0.1 ms, and far more where a hypervisor takes back
// what its guest does not use.
func newMemory(report func(figures.Figure)) error {
	const huge, n = 2 << 20, 64
	mem, err := unix.Mmap(-1, 0, (n+1)*huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // a kernel without them gives small pages
	var took times
	first := int(-uintptr(unsafe.Pointer(&mem[0])) & (huge - 1))
	for at := first; at < first+n*huge; at += huge {
		_ = took.add(func() error {
			for page := at; page < at+huge; page += 4096 {
				mem[page] = 1
			}
			return nil
		})
	}
	report(figures.Free("growth/new-memory/2MiB/median", float64(took.median())/1e6, "ms"))
	report(figures.Free("growth/new-memory/2MiB/longest", float64(took.quantile(1))/1e6, "ms"))
	return nil
}
