package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/raftstore"
)

// serversDir is where the servers of a run have their data and logs.
const serversDir = "servers"

// A log frees dropped entries segment by segment.
const (
	snapshotEvery = 256 << 10
	trailingLog   = 64 << 10
	logSegment    = 256 << 10
	shortLog      = 2*snapshotEvery + trailingLog + 2*logSegment
)

// processes drives a run with servers that are processes.
type processes struct {
	binary  string
	cluster *cluster.Cluster

	before        map[string]cluster.Usage // of each server, before the faults
	most, mostNow cluster.Usage            // the largest values of any server, before and after the faults
}

// Limits allow for other work on the machine; the run prints the measured times.
func (*processes) Limits() chaos.Limits {
	return chaos.Limits{
		FirstPush: 20 * time.Second, AllClients: 30 * time.Second, Serving: 50 * time.Second, CatchUp: 40 * time.Second,
		AcksPerSecond: 10,
	}
}

// Start starts the servers behind proxies.
func (p *processes) Start(ctx context.Context, cfg *chaos.Config, rec *history.Recorder) (*chaos.System, error) {
	dir := filepath.Join(cfg.Dir, serversDir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	opts := localcluster.Options{
		Binary: p.binary, Dir: dir, Servers: cfg.Servers, Shards: cfg.Shards, Slots: cfg.Slots, Backend: cfg.Backend,
		Profile: cfg.Profile,
		Args: []string{
			// A leader whose disk hangs because of a fault must give up. One whose disk is only busy should not.
			"--disk-reserve-bytes", "1", "--disk-stall-limit", "2s",
			// Frequent snapshots, and replicas that need them.
			"--proof-every", "500ms", "--snapshot-every-bytes", fmt.Sprint(snapshotEvery), "--trailing-log-bytes",
			fmt.Sprint(trailingLog),
			"--log-segment-bytes", fmt.Sprint(logSegment),
			// Replicas with a rolled back disk are replaced during the run.
			"--replace-after", "20s",
		},
	}
	if cfg.Backend != "bolt" { // bolt maps its file into memory, where faults have no effect
		cluster.WithDiskFaults(&opts)
	}
	hung, err := nemesis.NewHungStore()
	if err != nil {
		return nil, err
	}
	opts.Env = append(opts.Env, hung.Env()...)
	if p.cluster, err = cluster.Start(ctx, opts); err != nil {
		return nil, errors.Join(err, hung.Close())
	}
	disks := "that cannot be told to fail"
	if p.cluster.CanDisk() {
		disks = "that can be told to fail"
	}
	cfg.Log(fmt.Sprintf("%d servers serve, log backend %s, disks %s, %d clients", cfg.Servers, cfg.Backend, disks,
		cfg.Clients))
	return &chaos.System{
		Cluster: servers{p.cluster}, Net: p.cluster.Net, Watch: p.cluster.NewWatch(rec.Now), Hung: hung,
		Endpoints: p.cluster.Endpoints(), ShortLogBytes: shortLog,
	}, nil
}

// servers describes dead servers with their logs.
type servers struct{ *cluster.Cluster }

func (s servers) Dead() (out []string) {
	for _, name := range s.Cluster.Dead() {
		out = append(out, fmt.Sprintf("server %s has ended by itself; its log: %s", name, s.Server(name).LogFile))
	}
	return out
}

// AfterEnd reports the errors in the servers' logs, and returns the leader of each shard in each term: the logs include
// terms that were too short for sampling.
func (p *processes) AfterEnd(r *chaos.Run) []check.Leading {
	var leads []check.Leading
	for _, name := range p.cluster.Names() {
		b, err := os.ReadFile(p.cluster.Server(name).LogFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.Wrong("%v", err)
		}
		for _, line := range cluster.BadLines(b) {
			if strings.Contains(line, raftstore.RolledBack) {
				continue // WronglyRefused checks these
			}
			r.Wrong("log of server %s: %s", name, line)
		}
		leads = append(leads, leadsIn(b)...)
	}
	if len(leads) == 0 {
		r.Wrong("no server has logged that it leads a shard")
	}
	return leads
}

// leadsIn returns the leaderships in a server's log.
func leadsIn(log []byte) []check.Leading {
	var out []check.Leading
	for line := range bytes.Lines(log) {
		var e struct {
			Msg, Replica string
			Shard        int
			Term         uint64
		}
		if bytes.Contains(line, []byte("leads the shard")) && json.Unmarshal(line, &e) == nil && e.Msg == "leads the shard" {
			out = append(out, check.Leading{Shard: e.Shard, Term: e.Term, Replica: e.Replica})
		}
	}
	return out
}
