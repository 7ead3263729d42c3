package scaffold

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft/internal/cli"
)

// Host is the machine of a measurement. It is a part of every result.
type Host struct {
	Cores     int    `json:"cores"`
	Processor string `json:"cpu"`
	GoVersion string `json:"go_version"`
}

// ThisHost returns the machine that this process runs on.
func ThisHost() Host { return Host{runtime.NumCPU(), cpuModel(), runtime.Version()} }

func (h Host) String() string {
	return fmt.Sprintf("%d cores, %s, %s", h.Cores, h.Processor, h.GoVersion)
}

// BusyHost is the machine of a measurement that the load of the machine's other users changes.
type BusyHost struct {
	Host
	Load [2]float64 `json:"machine_load"` // 1 minute average before and after
}

func (h BusyHost) String() string {
	return fmt.Sprintf("%v, load %.1f before and %.1f after", h.Host, h.Load[0], h.Load[1])
}

// SyncTime returns how long fdatasync takes in dir after a write of 64 KiB to the end of a file, the median of 32, in
// milliseconds.
func SyncTime(dir string) (ms float64, err error) {
	f, err := os.CreateTemp(dir, "rowraft-bench-sync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	var took [32]time.Duration
	for i := range took {
		if _, err := f.Write(make([]byte, 64<<10)); err != nil {
			return 0, err
		}
		begun := time.Now()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, os.NewSyscallError("fdatasync", err)
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took[:])
	return took[len(took)/2].Seconds() * 1000, nil
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// MachineLoad returns the load average of a minute, 0 if the kernel does not report it.
func MachineLoad() (load float64) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(b), &load); err != nil {
		return 0
	}
	return load
}

// Bars is the part of a result that holds it against its bars.
type Bars struct {
	Passed bool     `json:"passed"`
	Failed []string `json:"failed,omitempty"` // the figures that missed their bars
}

// Miss records a figure that missed its bar.
func (b *Bars) Miss(format string, args ...any) {
	b.Failed = append(b.Failed, fmt.Sprintf(format, args...))
}

// Summary is the verdict for people.
func (b *Bars) Summary() string {
	if b.Passed {
		return "passed"
	}
	return "missed: " + strings.Join(b.Failed, "; ")
}

// Verdict is the error of a result that --check does not let pass.
func (b *Bars) Verdict(op string) error {
	if b.Passed {
		return nil
	}
	return cli.Verdict(fmt.Errorf("bench %s: %s", op, strings.Join(b.Failed, "; ")))
}
