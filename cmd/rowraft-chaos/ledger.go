package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// ledgerLine returns the run as a line of the table at the end of docs/reliability-ledger.md.
func (r *result) ledgerLine(now time.Time, load string) string {
	kinds := 0
	for _, n := range r.Faults {
		if n.Observed > 0 {
			kinds++
		}
	}
	minutes := fmt.Sprintf("%.1f", r.Seconds/60)
	if r.Virtual > 0 {
		minutes = fmt.Sprintf("%.1f (%.1f virtual)", r.Seconds/60, r.Virtual/60)
	}
	c := r.Config
	fields := []string{
		now.UTC().Format(time.DateOnly), c.Version,
		fmt.Sprintf("%s, %d, %s, %d servers, %d shards, %d clients",
			c.Tier, c.Seed, c.Backend, c.Servers, c.Shards, c.Clients),
		fmt.Sprintf("%d cores, load %s", runtime.NumCPU(), load), minutes,
		fmt.Sprintf("%s (%d)", thousands(int64(r.Observed)), kinds), thousands(r.Acks), thousands(r.Pulls),
		fmt.Sprint(r.Terms),
		fmt.Sprint(r.Lost), fmt.Sprint(r.Doubled), fmt.Sprint(r.Diverged), fmt.Sprint(len(r.Problems)),
	}
	return "| " + strings.Join(fields, " | ") + " |\n"
}

// thousands formats n as 1,234,567.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// appendLedger appends the run's line to an existing ledger.
func (r *result) appendLedger(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(r.ledgerLine(time.Now(), loadAverage()))
	return errors.Join(err, f.Close())
}

// loadAverage returns the machine's load of the last five minutes, "unknown" on systems other than Linux.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); err == nil && len(f) > 1 {
		return f[1]
	}
	return "unknown"
}
