package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/hot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
)

// config configures a run of the demo.
type config struct {
	servers, shards, trainers int
	mode                      string
	steps                     int64 // of each trainer
	data, schema              string
	backend                   string
	trainerBinary             string
	keep                      bool // keep the directory
	kill                      bool
}

// result is the JSON of a demo; the field names are a contract.
type result struct {
	Schema             string              `json:"schema"`
	AUC                localcluster.Number `json:"auc"`
	BestAUC            localcluster.Number `json:"best_auc"` // null on the user's own data
	LogLoss            localcluster.Number `json:"log_loss"`
	ExamplesPerSecond  localcluster.Number `json:"examples_per_second"`
	FailoverSeconds    localcluster.Number `json:"failover_seconds"` // null if nothing was killed
	CatchUpSeconds     localcluster.Number `json:"catch_up_seconds"` // restart → caught up
	PushesAcknowledged int64               `json:"pushes_acknowledged"`
	PushesLost         int64               `json:"pushes_lost"`
	PushesDuplicated   int64               `json:"pushes_duplicated"`
	ReplicasSame       int                 `json:"replicas_same"`
	Replicas           int                 `json:"replicas"`
	ReplicasIdentical  bool                `json:"replicas_identical"`
	RowsReused         int64               `json:"rows_reused"` // from copies; 0 in modes without a cache
	RowsPulled         int64               `json:"rows_pulled"` // in addition, with a cache
	BytesSaved         int64               `json:"bytes_saved"` // by the reused rows
	Seconds            float64             `json:"seconds"`
	OK                 bool                `json:"ok"`
	Problems           []string            `json:"problems"`
}

// run is a demo in progress.
type run struct {
	cfg     config
	dir     string
	view    *cli.RunView
	cluster *localcluster.Cluster
	client  *client.Client

	killedAt, recoveredAt time.Time
	victim                *localcluster.Server
	restarted             chan error // result of the restart; nil before it begins
	restartedAt, caughtUp time.Time
}

const (
	maxAUCGap = 0.03 // from the best possible
	startTime = 3 * time.Minute
	checkTime = 3 * time.Minute
)

// runAll trains on a cluster of processes, kills a leader during the training, and counts lost pushes. The result is
// not nil if the training ended.
func runAll(ctx context.Context, cfg config, out io.Writer) (result *result, err error) {
	d := &run{cfg: cfg, view: cli.NewRunView(out)}
	defer d.view.Done()
	if d.cfg.trainerBinary, err = localcluster.FindBinary("rowraft-trainer", cfg.trainerBinary); err != nil {
		return nil, err
	}
	if d.dir, err = os.MkdirTemp("", "rowraft-demo-"); err != nil {
		return nil, err
	}
	defer func() {
		failed := err != nil && !errors.Is(err, context.Canceled) || result != nil && !result.OK
		if cerr := d.cleanUp(cfg.keep || failed); err == nil {
			err = cerr
		}
	}()
	if err := d.start(ctx); err != nil {
		return nil, err
	}
	results, err := d.train(ctx)
	if err != nil {
		return nil, err
	}
	d.view.Done()
	return d.check(ctx, results)
}

func (d *run) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.cluster, err = localcluster.Start(ctx, localcluster.Options{
		Binary: self, Dir: d.dir, Servers: d.cfg.servers, Shards: d.cfg.shards, Backend: d.cfg.backend, Profile: "fast",
	})
	if err != nil {
		return err
	}
	d.view.Event("%s up: %s", cli.Plural(d.cfg.servers, "server"), strings.Join(d.cluster.Endpoints(), ", "))
	d.client, err = client.Dial(ctx, client.Options{Endpoints: d.cluster.Endpoints()})
	return err
}

// cleanUp ends every process. Then it removes the directory, or keeps it and prints its path.
func (d *run) cleanUp(keep bool) error {
	var errs []error
	if d.client != nil {
		errs = append(errs, d.client.Close())
	}
	if d.cluster != nil {
		errs = append(errs, d.cluster.Stop())
	}
	if keep {
		d.view.Event("logs and data are kept in %s", d.dir)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// train runs the trainers and handles their events. Half-way it kills the server that leads the most shards.
func (d *run) train(ctx context.Context) ([]localcluster.TrainerResult, error) {
	config, err := d.writeJob()
	if err != nil {
		return nil, err
	}
	procs, err := localcluster.StartTrainers(d.cfg.trainerBinary, d.dir, func(int) string { return config },
		d.cluster.Endpoints(), d.cfg.trainers)
	if err != nil {
		return nil, err
	}
	d.view.Event("%s on %s", cli.Plural(d.cfg.trainers, "trainer"), d.dataName())
	defer func() {
		procs.Kill()
		procs.Drain(context.WithoutCancel(ctx))
	}()
	progress := newProgress()
	for {
		select {
		case e, ok := <-procs.Events:
			if !ok {
				return d.finish(ctx, procs)
			}
			progress.add(e)
			if err := d.follow(ctx, e, progress.total()); err != nil {
				return nil, err
			}
		case err := <-d.restarted:
			if err != nil {
				return nil, fmt.Errorf("restart of the killed server: %w", err)
			}
			d.restarted = nil
			d.view.Event("server %s has caught up %.1f s after its restart", d.victim.Name,
				d.caughtUp.Sub(d.restartedAt).Seconds())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// follow handles one event of a trainer.
func (d *run) follow(ctx context.Context, e localcluster.TrainerEvent, total localcluster.TrainerEvent) error {
	switch e.Event {
	case localcluster.EventStep:
		d.view.Progress(total.Step, total.Steps, progressText(total, d.view.Start))
	case localcluster.EventSkipped:
		d.view.Event("trainer %d: %s", e.Rank, e.Message)
	case localcluster.EventAck:
		if !d.killedAt.IsZero() && d.recoveredAt.IsZero() && e.Sent != nil && e.Sent.After(d.killedAt) {
			d.recoveredAt = e.Time
			d.view.Event("first push acknowledged %.2f s after the kill", e.Time.Sub(d.killedAt).Seconds())
		}
	}
	if d.cfg.kill && d.victim == nil && total.Steps > 0 && total.Step >= total.Steps/2 {
		if err := d.killLeader(ctx); err != nil {
			return err
		}
	}
	// Restart the server after the training has continued without it for some steps.
	if d.victim != nil && !d.recoveredAt.IsZero() && d.restartedAt.IsZero() && total.Step >= total.Steps*6/10 {
		d.restart(ctx)
	}
	return nil
}

// killLeader sends kill −9 to the server that leads the most shards.
func (d *run) killLeader(ctx context.Context) error {
	leads, err := d.leaderCounts(ctx)
	if err != nil {
		return err
	}
	for _, s := range d.cluster.Servers() {
		if d.victim == nil || leads[s.ID()] > leads[d.victim.ID()] {
			d.victim = s
		}
	}
	d.killedAt = time.Now()
	if err := d.victim.Kill(); err != nil {
		return err
	}
	d.view.Event("kill −9 of server %s, which led %d of %d shards", d.victim.Name, leads[d.victim.ID()],
		len(d.client.Map().Shards))
	return nil
}

// leaderCounts asks every server which shards it leads.
func (d *run) leaderCounts(ctx context.Context) (map[rowraft.NodeID]int, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	leads := make(map[rowraft.NodeID]int)
	for _, s := range d.cluster.Servers() {
		st, err := localcluster.AwaitStatus(ctx, s.Addr)
		if err != nil {
			return nil, err
		}
		for _, r := range st.Replicas {
			if r.Role == "leader" {
				leads[rowraft.NodeID(st.NodeId)]++
			}
		}
	}
	return leads, nil
}

// restart starts the killed server again. Concurrently with the training it waits until the server's replicas have
// applied what the leaders had committed at the restart.
func (d *run) restart(ctx context.Context) {
	d.restartedAt = time.Now()
	d.restarted = make(chan error, 1)
	d.view.Event("restarting server %s", d.victim.Name)
	go func() {
		err := d.cluster.Restart(ctx, d.victim)
		if err == nil {
			err = d.awaitCaughtUp(ctx)
		}
		d.caughtUp = time.Now()
		d.restarted <- err
	}()
}

func (d *run) awaitCaughtUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	want := make(map[uint32]uint64) // shard → commit index when the server came back
	for _, s := range d.cluster.Servers() {
		if s == d.victim {
			continue
		}
		st, err := localcluster.AwaitStatus(ctx, s.Addr)
		if err != nil {
			return err
		}
		for _, r := range st.Replicas {
			want[r.Shard] = max(want[r.Shard], r.CommitIndex)
		}
	}
	for {
		st, err := localcluster.Status(ctx, d.victim.Addr)
		if err != nil && ctx.Err() != nil {
			return err
		}
		behind := err != nil || len(st.Replicas) == 0
		for _, r := range st.GetReplicas() {
			behind = behind || r.CommitIndex < want[r.Shard] || r.LastIndex < want[r.Shard]
		}
		if !behind {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("server %s has not caught up: %w", d.victim.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// finish waits for a running restart and reads the results of the trainers.
func (d *run) finish(ctx context.Context, procs *localcluster.Trainers) ([]localcluster.TrainerResult, error) {
	if err := procs.Err(); err != nil {
		return nil, err
	}
	if d.victim != nil && d.restartedAt.IsZero() {
		d.restart(ctx)
	}
	if d.restarted != nil {
		if err := <-d.restarted; err != nil {
			return nil, fmt.Errorf("restart of the killed server: %w", err)
		}
		d.view.Event("server %s has caught up %.1f s after its restart", d.victim.Name,
			d.caughtUp.Sub(d.restartedAt).Seconds())
	}
	return procs.Results()
}

// check counts lost pushes and compares the replicas.
func (d *run) check(ctx context.Context, results []localcluster.TrainerResult) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if err := d.showSkew(ctx); err != nil {
		return nil, err
	}
	r := &result{Schema: "rowraft/v1", Seconds: time.Since(d.view.Start).Seconds(), Problems: []string{}}
	acknowledged := make([]int64, len(results))
	for i, t := range results {
		acknowledged[i] = t.PushesAcknowledged
		r.PushesAcknowledged += t.PushesAcknowledged
		r.ExamplesPerSecond += t.ExamplesPerSecond
		r.RowsReused, r.RowsPulled = r.RowsReused+t.RowsReused, r.RowsPulled+t.RowsPulled
		r.BytesSaved += t.BytesSaved
	}
	a, err := checkAudit(ctx, d.client, jobName+".audit", acknowledged)
	if err != nil {
		return nil, err
	}
	r.PushesLost, r.PushesDuplicated = a.Lost, a.Duplicated
	n, err := checkReplicas(ctx, d.client, rpc.TLSFiles{})
	if err != nil {
		return nil, err
	}
	r.Replicas, r.ReplicasSame, r.ReplicasIdentical = n.All, n.Same, n.Same == n.All
	if err := d.evaluate(ctx, r); err != nil {
		return nil, err
	}
	r.FailoverSeconds, r.CatchUpSeconds = between(d.killedAt, d.recoveredAt), between(d.restartedAt, d.caughtUp)
	r.judge(d.cfg.kill)
	return r, nil
}

// showSkew prints how much of the accesses the hottest keys receive.
func (d *run) showSkew(ctx context.Context) error {
	line, err := hot.Summary(ctx, &remote.Flags{Endpoints: d.cluster.Endpoints(), Insecure: true, Timeout: checkTime,
		AskLimit: route.AskLimit})
	if err != nil {
		return fmt.Errorf("skew: %w", err)
	}
	if line != "" {
		d.view.Event("%s", line)
	}
	return nil
}

// judge lists what went wrong in the run.
func (r *result) judge(killed bool) {
	say := func(bad bool, format string, args ...any) {
		if bad {
			r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
		}
	}
	say(r.PushesLost > 0, "%d acknowledged pushes were lost", r.PushesLost)
	say(r.PushesDuplicated > 0, "%d pushes were applied twice", r.PushesDuplicated)
	say(!r.ReplicasIdentical, "only %d of %d replicas agree with their shard's first", r.ReplicasSame, r.Replicas)
	say(r.PushesAcknowledged == 0, "no push was acknowledged")
	say(killed && !r.FailoverSeconds.Known(), "no push was acknowledged after the kill")
	say(r.BestAUC.Known() && !(r.AUC >= r.BestAUC-maxAUCGap), "AUC %.4f is more than %.2f below the best possible %.4f",
		float64(r.AUC), maxAUCGap, float64(r.BestAUC))
	r.OK = len(r.Problems) == 0
}
