package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// The limits of the servers of bench overload are low, so that the processes that load them fit
// on the same machine.
const (
	overloadInFlight    = 80 << 10
	overloadMemory      = 512 << 20
	overloadFactor      = 10
	overloadOffer       = 1.1 * overloadFactor // pushes beyond the limit of a session's pushes in flight are not offered
	overloadGreedy      = 2                    // clients that offer all of the load and do not wait for answers
	overloadModest      = 2                    // clients of package client with little to do
	overloadRecoveryBar = 10 * time.Second
	overloadPatience    = 2 * time.Minute
)

// overloadResult is the JSON of `bench overload`; the field names are a contract.
type overloadResult struct {
	Schema string `json:"schema"`
	Op     string `json:"op"`

	Seconds  float64 `json:"seconds"`
	Limit    float64 `json:"let_through_per_second"` // pushes of clients that always have some waiting
	Offered  float64 `json:"offered_per_second"`
	Admitted float64 `json:"admitted_per_second"`
	Refused  float64 `json:"refused_per_second"`
	Factor   float64 `json:"factor"` // offered ÷ let through
	Goodput  float64 `json:"goodput_ratio"`

	LeaderChanges int     `json:"leader_changes"`
	Memory        int64   `json:"max_resident_bytes"` // the most of any server
	MemoryLimit   int64   `json:"memory_limit_bytes"`
	Recovered     float64 `json:"recovered_seconds"` // from the end of the load until every client was served again
	Acknowledged  int64   `json:"acknowledged_pushes"`
	Applied       int64   `json:"applied_pushes"`

	// The numbers of cores in use during the load.
	ServerCores    float64 `json:"server_cores"`
	GeneratorCores float64 `json:"generator_cores"`

	Modest []overloadModestResult `json:"modest_clients"`

	scaffold.Bars

	InFlightLimit int64  `json:"in_flight_limit_bytes"`
	Greedy        int    `json:"greedy_clients"`
	Replicas      int    `json:"replicas"`
	Profile       string `json:"profile"`
	Backend       string `json:"log_backend"`
	scaffold.BusyHost
}

// overloadModestResult is one client that pushes little during the load.
type overloadModestResult struct {
	Calm     int     `json:"calm_pushes"`
	CalmP99  float64 `json:"calm_p99_seconds"`
	Loaded   int     `json:"loaded_pushes"`
	P50      float64 `json:"loaded_p50_seconds"`
	P99      float64 `json:"loaded_p99_seconds"`
	Max      float64 `json:"loaded_max_seconds"`
	FirstErr string  `json:"first_error,omitempty"`
}

// benchOverload offers servers of its own ten times as many pushes as their limits admit.
func benchOverload(ctx context.Context, cfg benchConfig, progress io.Writer) (r *overloadResult, err error) {
	switch {
	case cfg.shards != 1 || cfg.replicas != 3:
		return nil, cli.Usagef("bench overload --shards %d --replicas %d: want 1 and 3", cfg.shards, cfg.replicas)
	case cfg.seconds <= 0:
		return nil, cli.Usagef("--seconds %v: want more than 0", cfg.seconds)
	}
	r = &overloadResult{
		Schema: cli.JSONSchema, Op: "overload", MemoryLimit: overloadMemory, InFlightLimit: overloadInFlight,
		Greedy:   overloadGreedy,
		Replicas: cfg.replicas, Profile: cfg.profile, Backend: cfg.backend,
		BusyHost: scaffold.BusyHost{Host: scaffold.ThisHost()},
	}
	r.Load[0] = scaffold.MachineLoad()
	fmt.Fprintf(progress, "starting %s that let in %s …\n", cli.Plural(cfg.replicas, "server"),
		humanize.IBytes(overloadInFlight))
	cluster, dir, err := cfg.own().Start(ctx, overloadPatience, func(_ string, o *localcluster.Options) {
		o.Args = []string{
			"--log-level", "warn", "--disk-stall-limit", "30s", "--rebalance=false",
			"--in-flight-bytes", strconv.Itoa(overloadInFlight), "--client-in-flight-bytes", strconv.Itoa(overloadInFlight / 4),
			"--memory-limit-bytes", strconv.Itoa(overloadMemory),
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop(), os.RemoveAll(dir)) }()
	if err := r.run(ctx, cluster, cfg.seconds, progress); err != nil {
		return nil, err
	}
	r.Load[1] = scaffold.MachineLoad()
	r.judge()
	return r, nil
}

// run measures how many pushes the limits admit, offers ten times as many, and then checks every
// client, push and leader.
func (r *overloadResult) run(ctx context.Context, cluster *localcluster.Cluster, seconds float64,
	progress io.Writer) (err error) {
	l, err := newOverloadLoad(ctx, cluster)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	watch := watchMemory(cluster)
	defer watch.stop()
	terms, err := termsOf(ctx, cluster)
	if err != nil {
		return err
	}
	short := time.Duration(min(max(seconds/6, 1), 5) * float64(time.Second))
	fmt.Fprintf(progress, "%v of calm, then %v of as much as gets in …\n", short, short)
	l.beginModest()
	if err := scaffold.PauseFor(ctx, short); err != nil {
		return err
	}
	l.phase(modestCounts)
	full := l.greedy(ctx, short, 0)
	if full.err != nil {
		return full.err
	}
	r.Limit = float64(full.admitted) / full.took.Seconds()
	l.phase(modestLoaded)
	fmt.Fprintf(progress, "the limits let through %.0f pushes a second; offering %.0f for %gs …\n", r.Limit,
		overloadOffer*r.Limit, seconds)
	servers, own := serversCPU(cluster), processCPU(os.Getpid())
	load := l.greedy(ctx, time.Duration(seconds*float64(time.Second)), overloadOffer*r.Limit)
	ended := time.Now()
	if load.err != nil {
		return load.err
	}
	r.Seconds = load.took.Seconds()
	r.ServerCores, r.GeneratorCores = (serversCPU(cluster)-servers)/r.Seconds, (processCPU(os.Getpid())-own)/r.Seconds
	r.Offered, r.Admitted, r.Refused = float64(load.offered)/r.Seconds, float64(load.admitted)/r.Seconds,
		float64(load.refused)/r.Seconds
	r.Factor, r.Goodput = r.Offered/r.Limit, r.Admitted/r.Limit
	recovered, err := l.recovered(ctx, ended)
	if err != nil {
		return err
	}
	r.Recovered = recovered.Seconds()
	if r.Modest, err = l.endModest(); err != nil {
		return err
	}
	if r.Applied, err = l.applied(ctx); err != nil {
		return err
	}
	r.Acknowledged = l.acknowledged()
	after, err := termsOf(ctx, cluster)
	if err != nil {
		return err
	}
	for shard, term := range after {
		r.LeaderChanges += int(term - terms[shard])
	}
	r.Memory = watch.stop()
	return nil
}

// judge compares the figures with their bars.
func (r *overloadResult) judge() {
	if r.Factor < overloadFactor {
		r.Miss("this machine offered %.1f times what the limits let through, not %d", r.Factor, overloadFactor)
	}
	if r.LeaderChanges != 0 {
		r.Miss("%d leader changes", r.LeaderChanges)
	}
	if r.Applied != r.Acknowledged {
		r.Miss("%d pushes were applied, %d acknowledged", r.Applied, r.Acknowledged)
	}
	if r.Memory > r.MemoryLimit {
		r.Miss("a server had %s of memory, its limit is %s", humanize.IBytes(uint64(r.Memory)),
			humanize.IBytes(uint64(r.MemoryLimit)))
	}
	if r.Recovered > overloadRecoveryBar.Seconds() {
		r.Miss("recovered after %.1f s, the bar is %v", r.Recovered, overloadRecoveryBar)
	}
	for i, m := range r.Modest {
		if m.Loaded == 0 || m.FirstErr != "" {
			r.Miss("modest client %d was served %d times: %s", i+1, m.Loaded, m.FirstErr)
		}
	}
	r.Passed = len(r.Failed) == 0
}

func (r *overloadResult) Print(w io.Writer) error {
	pairs := []string{
		"load", fmt.Sprintf("%.0f pushes/s for %.0f s, %.1f times the %.0f/s that the limits let through", r.Offered,
			r.Seconds, r.Factor, r.Limit),
		"cores", fmt.Sprintf("servers %.2f, load %.2f", r.ServerCores, r.GeneratorCores),
		"admitted", fmt.Sprintf("%.0f/s (%.0f %% of that), %.0f/s refused", r.Admitted, 100*r.Goodput, r.Refused),
		"leader changes", strconv.Itoa(r.LeaderChanges),
		"memory", fmt.Sprintf("at most %s of %s", humanize.IBytes(uint64(r.Memory)), humanize.IBytes(uint64(r.MemoryLimit))),
		"recovered", fmt.Sprintf("%.3f s after it", r.Recovered),
		"pushes", fmt.Sprintf("%s acknowledged, %s applied", cli.Count(uint64(r.Acknowledged)), cli.Count(uint64(r.Applied))),
	}
	for i, m := range r.Modest {
		pairs = append(pairs, fmt.Sprintf("modest client %d", i+1),
			fmt.Sprintf("%d pushes during the load, p50 %.3f s, p99 %.3f s, max %.3f s (calm: p99 %.3f s)", m.Loaded, m.P50,
				m.P99, m.Max, m.CalmP99))
	}
	if !r.Passed {
		pairs = append(pairs, "FAILED", strings.Join(r.Failed, "; "))
	}
	return cli.Facts(w, append(pairs, "machine", r.BusyHost.String())...)
}

// termsOf is the highest term that any replica of each shard knows. It waits for servers that
// stand still.
func termsOf(ctx context.Context, c *localcluster.Cluster) (map[uint32]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, overloadPatience)
	defer cancel()
	return scaffold.HighestOf(ctx, c.Servers(), localcluster.AwaitStatus, (*rowraftv1.ReplicaStatus).GetTerm)
}

// memoryWatch reads the resident memory of the servers ten times a second.
type memoryWatch struct {
	end  context.CancelFunc
	done chan struct{}
	most int64
}

func watchMemory(c *localcluster.Cluster) *memoryWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &memoryWatch{end: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for scaffold.PauseFor(ctx, 100*time.Millisecond) == nil {
			for _, s := range c.Servers() {
				w.most = max(w.most, residentOf(s.Pid()))
			}
		}
	}()
	return w
}

func (w *memoryWatch) stop() int64 {
	w.end()
	<-w.done
	return w.most
}

func residentOf(pid int) int64 {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 48)
	return pages * int64(os.Getpagesize())
}
