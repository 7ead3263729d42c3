package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// The resources that a server may use beyond those before the faults. Both times the same clients are
// connected and idle.
const (
	moreGoroutines = 60
	moreThreads    = 30 // the runtime keeps threads that it needed once
	moreFiles      = 40
	// A group keeps up to three connections to each peer after it has needed them.
	moreFilesPerShard      = 24
	moreGoroutinesPerShard = 3 * moreFilesPerShard

	// The heap grows to its goal and does not shrink: from 48 to 55 MiB to 147 to 149 MiB in runs of the last versions.
	moreRSSBytes  = 128 << 20
	moreDataBytes = 32 << 20 // log and snapshots of all shards, between two snapshots
	settleLimit   = 20 * time.Second
	warmUp        = 2 * time.Second
)

// BeforeFaults lets the clients run for a moment and measures every server.
func (p *processes) BeforeFaults(ctx context.Context, r *chaos.Run) error {
	if err := r.WarmUp(ctx, warmUp); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	err := cluster.Poll(ctx, func() (err error) { // a server may not respond for a moment
		p.before, err = p.usage(ctx)
		return err
	})
	p.most = most(p.before)
	return err
}

func (p *processes) usage(ctx context.Context) (map[string]cluster.Usage, error) {
	out := make(map[string]cluster.Usage)
	for _, name := range p.cluster.Names() {
		u, err := p.cluster.Usage(ctx, name)
		if err != nil {
			return nil, err
		}
		out[name] = u
	}
	return out, nil
}

// AfterFaults waits until every server uses about as many resources as before the faults.
func (p *processes) AfterFaults(ctx context.Context, r *chaos.Run) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("%v after the faults", settleLimit))
	defer cancel()
	var much error // the excess at the last time when all servers responded
	err := cluster.Poll(ctx, func() error {
		after, err := p.usage(ctx)
		if err != nil {
			return errors.Join(much, err)
		}
		p.mostNow, much = most(after), nil
		for _, name := range slices.Sorted(maps.Keys(after)) {
			if err := grown(p.before[name], after[name], int64(r.Config.Shards)); err != nil {
				much = fmt.Errorf("server %s has %w", name, err)
			}
		}
		return much
	})
	if err != nil {
		r.Wrong("resources: %v", err)
	}
}

// grown returns an error if a number of b is far above that of a.
func grown(a, b cluster.Usage, shards int64) error {
	for _, x := range []struct {
		what        string
		a, b, bound int64
	}{
		{"goroutines", int64(a.Goroutines), int64(b.Goroutines), moreGoroutines + shards*moreGoroutinesPerShard},
		{"threads", int64(a.Threads), int64(b.Threads), moreThreads},
		{"open files", int64(a.Files), int64(b.Files), moreFiles + shards*moreFilesPerShard},
		{"bytes in memory", a.RSSBytes, b.RSSBytes, moreRSSBytes},
		{"bytes in its data directory", a.DataBytes, b.DataBytes, moreDataBytes},
	} {
		if x.b > x.a+x.bound {
			return fmt.Errorf("%d %s, %d before the faults; %d more are allowed", x.b, x.what, x.a, x.bound)
		}
	}
	return nil
}

// most returns the largest value of each number.
func most(of map[string]cluster.Usage) (m cluster.Usage) {
	for _, u := range of {
		m.Goroutines, m.Threads, m.Files = max(m.Goroutines, u.Goroutines), max(m.Threads, u.Threads), max(m.Files, u.Files)
		m.RSSBytes, m.DataBytes = max(m.RSSBytes, u.RSSBytes), max(m.DataBytes, u.DataBytes)
	}
	return m
}

func usageLine(u cluster.Usage) string {
	return fmt.Sprintf("%d goroutines, %d threads, %d files, %d MiB, %d MiB on disk",
		u.Goroutines, u.Threads, u.Files, u.RSSBytes>>20, u.DataBytes>>20)
}

// own is the resources of this process.
type own struct{ goroutines, files int }

func ownUsage() own {
	fds, _ := os.ReadDir("/proc/self/fd")
	return own{runtime.NumGoroutine(), len(fds)}
}

const (
	ownLimit       = 10 * time.Second
	viewGoroutines = 2 // goroutines of the bar, which is drawn until the end
)

// nothingLeft waits until nothing of a run in dir remains: no process, no listening port, no goroutine and no open file
// of this process. The error says what is left.
func nothingLeft(dir string, before own) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), ownLimit,
		fmt.Errorf("%v after everything was closed", ownLimit))
	defer cancel()
	err := cluster.Poll(ctx, func() error {
		left, err := cluster.Leftovers(filepath.Join(dir, serversDir))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%d things are left, the first: %s", len(left), left[0])
		}
		if now := ownUsage(); now.goroutines > before.goroutines+viewGoroutines || now.files > before.files {
			return fmt.Errorf("this process has %d goroutines and %d files, %d and %d before; see %s",
				now.goroutines, now.files, before.goroutines, before.files, stacksFile)
		}
		return nil
	})
	if err == nil {
		return nil
	}
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	_ = os.WriteFile(filepath.Join(dir, stacksFile), stacks.Bytes(), 0o644)
	return fmt.Errorf("left behind: %w", err)
}

const stacksFile = "goroutines.txt"
