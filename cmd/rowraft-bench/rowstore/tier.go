package rowstore

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/trainer/data/zipf"
)

// tierConfig has the flags of tier.
type tierConfig struct {
	rows, times int
	dir         string
	seconds     float64
}

// skews are the exponents of the keys; 0: uniform. 1.05 has the bar.
var skews = []float64{0, 0.8, 1.0, 1.05, 1.2}

// NewTierCommand returns the command tier. Its output has the format.
func NewTierCommand(format *string) *cobra.Command {
	c := tierConfig{}
	check := false
	cmd := &cobra.Command{
		Use:   "tier",
		Short: "Measure a table of several times its memory, and one in memory",
		Long: `Measure pulls and pushes of a tiered table of --times its memory, and of one in memory, in this process,
with keys of several skews. Both tables take the same batches of 8,192 keys. The figures of memory are
the anonymous pages of the process, and the file pages of its memory cgroup, if it has one. They mean a
disk only where the cgroup has no room for the file in the page cache.`,
		Example: "  rowraft-bench tier --rows 4000000 --dir /var/tmp --json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.rows < 50_000 || c.times < 2 || c.seconds <= 0 {
				return cli.Usagef("--rows %d --times %d --seconds %v: want at least 50000 rows, twice the memory and some time",
					c.rows, c.times, c.seconds)
			}
			p := figures.NewPrinter(cmd.OutOrStdout(), *format)
			if err := errors.Join(tier(c, p.Add), p.Err()); err != nil || !check {
				return err
			}
			return p.Verdict()
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&c.rows, "rows", 1_000_000, "rows of each table, of dim 16 with Adagrad")
	fl.IntVar(&c.times, "times", 4, "size of the table in memory, divided by the memory of the tiered one")
	fl.StringVar(&c.dir, "dir", os.TempDir(), "directory of the file with cold rows")
	fl.Float64Var(&c.seconds, "seconds", 3, "time of each figure; as long again warms the tiered table up")
	fl.BoolVar(&check, "check", false, "exit with code 3 if a figure misses its bar")
	return cmd
}

func tier(c tierConfig, print func(figures.Figure)) error {
	s := schema(rowraft.Sparse, 16)
	inMemory, err := filled(s, c.rows, batchKeys, nil)
	if err != nil {
		return err
	}
	size := inMemory.Bytes()
	s.Memory = uint64(size) / uint64(c.times)
	table, err := tiered(c, s)
	if err != nil {
		return errors.Join(err, inMemory.Close())
	}
	defer table.Close()
	err = measureTier(c, inMemory, table, func(name string, memory, tiered, cold float64) {
		print(figures.Free("tier/"+name+"/in memory", memory/1e6, "Mrows/s"))
		print(figures.Free("tier/"+name+"/tiered", tiered/1e6, "Mrows/s"))
		print(figures.Free("tier/"+name+"/read from the file", cold, "of rows"))
		if name == "zipf 1.05/pull" {
			print(figures.AtLeast("tier/"+name+"/share of the rate in memory", tiered/memory, "", 0.25))
		}
	})
	if err = errors.Join(err, inMemory.Close()); err != nil { // its pages do not count below
		return err
	}
	const mib = 1 << 20
	st := table.Tier().Stats()
	print(figures.Free("tier/size of the table in memory", float64(size)/mib, "MiB"))
	print(figures.AtMost("tier/memory of the tiered table", float64(table.Bytes())/mib, "MiB",
		// The memory of rows does not shrink when the index grows: up to 14 bytes a row. Memory is taken in chunks of 2 MiB.
		1.1*float64(s.Memory)/mib+14*float64(c.rows)/mib+8))
	print(figures.Free("tier/file", float64(st.FileBytes)/mib, "MiB"))
	print(figures.Free("tier/rows written for a row on disk", float64(st.Written)/float64(st.Records), ""))
	for _, m := range []struct{ name, file, field string }{
		{"anonymous memory of the process", "/proc/self/status", "RssAnon:"},
		{"page cache of the cgroup", cgroupStat(), "cache"}, {"page cache of the cgroup", cgroupStat(), "file"},
	} {
		if n, ok := readField(m.file, m.field); ok {
			print(figures.Free("tier/"+m.name, n/mib, "MiB"))
		}
	}
	return nil
}

// tiered returns a table with its cold rows in a file that has no name any more.
func tiered(c tierConfig, s rowraft.Schema) (*rowstore.Table, error) {
	file, err := os.CreateTemp(c.dir, "rowraft-bench-tier-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	table, err := rowstore.New(rowstore.Options{Schema: s, Tier: file})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if err := fill(table, 0, c.rows, batchKeys, nil); err != nil {
		return nil, errors.Join(err, table.Close())
	}
	return table, nil
}

// measureTier reports rows per second of pulls and pushes for each skew, of both tables, and the share of the rows of
// the tiered one that were read from the file. The two rates are measured one right after the other: others may use the
// machine.
func measureTier(c tierConfig, inMemory, tiered *rowstore.Table,
	report func(name string, memory, tiered, cold float64)) error {
	dst := make([]byte, 1024*16*4)
	grads := floatBytes(someGradients(1024 * 16))
	push := func(t *rowstore.Table, k []rowraft.Key) error {
		for ; len(k) > 0; k = k[1024:] { // as a shard applies them
			if err := t.Tier().Prefetch(k[:1024]); err != nil {
				return err
			}
			if err := t.Update(k[:1024], grads, rowraft.Float32, 0.01); err != nil {
				return err
			}
		}
		return nil
	}
	pull := func(t *rowstore.Table, k []rowraft.Key) error {
		for ; len(k) > 0; k = k[1024:] {
			if err := t.Pull(k[:1024], dst, rowraft.Float32, nil); err != nil {
				return err
			}
			if t.Tier().NeedsSettle() {
				if err := t.Tier().Settle(); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, skew := range skews {
		keys, err := skewed(skew, c.rows, min(400, max(4, int(400*c.seconds))))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("zipf %v", skew)
		if skew == 0 {
			name = "uniform"
		}
		n := 0
		timed := func(t *rowstore.Table, do func(*rowstore.Table, []rowraft.Key) error) (perSecond, cold float64, _ error) {
			before, begun, rows := t.Tier().Stats().Read, time.Now(), 0
			for time.Since(begun).Seconds() < c.seconds {
				if err := do(t, keys[n%len(keys)]); err != nil {
					return 0, 0, err
				}
				n++
				rows += batchKeys
			}
			took := time.Since(begun).Seconds()
			return float64(rows) / took, float64(t.Tier().Stats().Read-before) / float64(rows), nil
		}
		for _, op := range []struct {
			name string
			do   func(*rowstore.Table, []rowraft.Key) error
		}{{"push", push}, {"pull", pull}} {
			if _, _, err := timed(tiered, op.do); err != nil { // it warms the tier up
				return err
			}
			memory, _, err := timed(inMemory, op.do)
			if err != nil {
				return err
			}
			rate, cold, err := timed(tiered, op.do)
			if err != nil {
				return err
			}
			report(name+"/"+op.name, memory, rate, cold)
		}
	}
	return nil
}

// skewed draws n batches of keys below rows, the hot ones scattered over all.
func skewed(skew float64, rows, n int) ([][]rowraft.Key, error) {
	rng := rand.New(rand.NewPCG(5, 6))
	draw := func() int64 { return rng.Int64N(int64(rows)) }
	if skew > 0 {
		z, err := zipf.New(int64(rows), skew)
		if err != nil {
			return nil, err
		}
		draw = func() int64 { return z.Draw(rng.Float64) - 1 }
	}
	out := make([][]rowraft.Key, n)
	for i := range out {
		out[i] = make([]rowraft.Key, batchKeys)
		for j := range out[i] {
			out[i][j] = rowraft.Key(uint64(draw()) * 7919 % uint64(rows))
		}
	}
	return out, nil
}

// cgroupStat returns the file with the memory figures of the cgroup of this process, of either version.
func cgroupStat() string {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	defer f.Close()
	path := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		switch part := strings.SplitN(lines.Text(), ":", 3); {
		case len(part) == 3 && part[1] == "memory":
			return filepath.Join("/sys/fs/cgroup/memory", part[2], "memory.stat")
		case len(part) == 3 && part[1] == "":
			path = filepath.Join("/sys/fs/cgroup", part[2], "memory.stat")
		}
	}
	return path
}

// readField returns the bytes of a line "field number" or "field number kB" of a file.
func readField(file, field string) (float64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != field {
			continue
		}
		n, err := strconv.ParseFloat(words[1], 64)
		if len(words) == 3 && words[2] == "kB" {
			n *= 1024
		}
		return n, err == nil
	}
	return 0, false
}
