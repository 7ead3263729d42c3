package sim

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
)

// pushes are how long pushes took, by when they were acknowledged.
type pushes struct {
	mu     sync.Mutex
	failed []error
	at     []time.Time
	took   []time.Duration
}

// since returns how long the pushes took that were acknowledged after begun, in ascending order.
func (p *pushes) since(begun time.Time) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, _ := slices.BinarySearchFunc(p.at, begun, time.Time.Compare)
	out := slices.Clone(p.took[i:])
	slices.Sort(out)
	return out
}

func percentile(sorted []time.Duration, p int) time.Duration { return sorted[(len(sorted)-1)*p/100] }

// push pushes from several goroutines, each one key after the other, until stop is closed.
func (p *pushes) push(ctx context.Context, t *testing.T, c *Cluster, stop <-chan struct{}) (wait func()) {
	cl, err := client.Dial(ctx, client.Options{Endpoints: c.Endpoints(), Dial: c.DialClient})
	if err != nil {
		t.Fatal(err)
	}
	table, err := cl.CreateTable(ctx, rowraft.Schema{
		Name: "t", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for key := rowraft.Key(i); ; key += 8 {
				select {
				case <-stop:
					return
				default:
				}
				begun := time.Now()
				_, err := table.Push(ctx, []rowraft.Key{key}, []float32{1})
				p.mu.Lock()
				if err != nil {
					p.failed = append(p.failed, err)
				} else {
					p.at, p.took = append(p.at, time.Now()), append(p.took, time.Since(begun))
				}
				p.mu.Unlock()
				time.Sleep(200 * time.Millisecond) //tidy:allow sleep virtual time
			}
		})
	}
	return func() {
		wg.Wait()
		cl.Close()
	}
}

// A cluster on slow disks forms and serves, slowly: the timers follow the disks, without a leader too.
func TestAClusterFormsOnSlowDisks(t *testing.T) {
	if raceEnabled {
		t.Skip("minutes under the race detector; TestSeeds runs the same code")
	}
	for _, late := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			dir := tempDir(t)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				began := time.Now()
				c, err := Start(ctx, Options{Dir: dir, LogLate: late})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}()
				formed := time.Since(began)
				var p pushes
				stop := make(chan struct{})
				wait := p.push(ctx, t, c, stop)
				time.Sleep(2 * time.Minute) //tidy:allow sleep virtual time
				close(stop)
				wait()
				all := p.since(began)
				t.Logf("formed after %v; %d pushes, p50 %v, p99 %v, longest %v; %d failed", formed, len(all), percentile(all, 50),
					percentile(all, 99), percentile(all, 100), len(p.failed))
				if got := percentile(all, 99); got > 5*time.Second {
					t.Errorf("p99 of pushes %v, want at most 5s", got)
				}
			})
		})
	}
}

// Disks become slow while the cluster serves: timers and leases follow, the status says whose disk it is, a disk that
// hangs then still costs its server the lead, and the timers are the old ones two minutes after the disks are well.
func TestTimersFollowTheDisks(t *testing.T) {
	if raceEnabled {
		t.Skip("minutes under the race detector; TestSeeds runs the same code")
	}
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
		defer cancel()
		c, err := Start(ctx, Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		var p pushes
		stop := make(chan struct{})
		wait := p.push(ctx, t, c, stop)
		phase := func(what string, took time.Duration) []time.Duration {
			begun := time.Now()
			time.Sleep(took) //tidy:allow sleep virtual time
			got := p.since(begun)
			if len(got) == 0 {
				t.Fatalf("%s: no push was acknowledged", what)
			}
			t.Logf("%s, %v: %d pushes, p50 %v, p99 %v, longest %v", what, took, len(got), percentile(got, 50),
				percentile(got, 99), percentile(got, 100))
			return got
		}
		everywhere := func(late time.Duration) {
			var faults []vfs.DiskFault
			if late > 0 {
				faults = append(faults, vfs.DiskFault{Name: "slow", Ops: []vfs.Op{vfs.OpSync}, Delay: late})
			}
			for _, name := range c.Names() {
				if err := c.SetDisk(name, faults...); err != nil {
					t.Fatal(err)
				}
			}
		}
		timers := func(want time.Duration) {
			t.Helper()
			for _, name := range c.Names() {
				st, err := rowraftv1.NewReplicasClient(c.Admins[name]).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range st.GetReplicas() {
					if got := time.Duration(r.GetHeartbeatNs()); got != want {
						t.Errorf("server %s, shard %d: heartbeat %v, want %v", name, r.GetShard(), got, want)
					}
				}
			}
		}
		finding := func() string {
			st, err := rowraftv1.NewClusterClient(c.Admins["n1"]).Status(ctx, &rowraftv1.StatusRequest{})
			for _, name := range c.Names() {
				if err != nil { // another one leads the scheduler
					st, err = rowraftv1.NewClusterClient(c.Admins[name]).Status(ctx, &rowraftv1.StatusRequest{})
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range diagnosis.Of(st, time.Now()) {
				if f.GetKind() == "disk-slow" && f.GetSubject() == "server n2" {
					return f.GetText()
				}
			}
			return ""
		}
		phase("healthy", time.Minute)
		timers(250 * time.Millisecond)
		if f := finding(); f != "" {
			t.Errorf("a finding on healthy disks: %s", f)
		}
		for _, slow := range []struct{ late, heartbeat time.Duration }{{400 * time.Millisecond, 2 * time.Second},
			{210 * time.Millisecond, 2 * time.Second}} {
			everywhere(slow.late)
			phase("the disks take "+slow.late.String(), 30*time.Second)
			got := phase("after that", 3*time.Minute)
			if p99 := percentile(got, 99); p99 > 5*time.Second {
				t.Errorf("p99 of pushes %v, want at most 5s", p99)
			}
			timers(slow.heartbeat)
		}
		want := "The disk of server n2 is slow: fsync takes 210 ms, profile fast needs ≤ 50 ms."
		if f := finding(); !strings.HasPrefix(f, want) {
			t.Errorf("the status says %q, want %q", f, want)
		}

		hung, _ := c.Watch.Leader(0)
		begun := time.Now()
		if err := c.SetDisk(hung.Server, vfs.DiskFault{Name: "hang", Ops: []vfs.Op{vfs.OpSync}, Hang: true}); err != nil {
			t.Fatal(err)
		}
		next, err := c.Watch.AwaitChange(ctx, 0, hung.Term)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("server %s leads %v after the disk of %s hung", next.Server, time.Since(begun), hung.Server)
		if took := time.Since(begun); took > 8*time.Second || next.Server == hung.Server {
			t.Errorf("server %s leads %v after the disk of %s hung; want another one within 8s", next.Server, took, hung.Server)
		}
		if !c.Running(hung.Server) {
			t.Errorf("server %s, whose disk hangs, has ended", hung.Server)
		}
		everywhere(0)
		phase("healthy again", 4*time.Minute)
		timers(250 * time.Millisecond)
		if f := finding(); f != "" {
			t.Errorf("a finding on disks that are well again: %s", f)
		}
		close(stop)
		wait()
		for _, err := range p.failed {
			t.Errorf("a push failed: %v", err)
		}
		for _, d := range c.Dead() {
			t.Error(d)
		}
	})
}
