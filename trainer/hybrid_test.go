package trainer

import (
	"context"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tableconf"
)

// kept is tinyConfig whose dense weights the trainers keep.
func kept(steps int64) Config {
	return placed(steps, ParameterConfig{Name: "*", Placement: PlaceTrainers})
}

// ranks are the configurations of n trainers that average with each other.
func ranks(t testing.TB, n int, steps int64, every int) []Config {
	t.Helper()
	out := make([]Config, n)
	var addresses []string
	for rank := range out {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		addresses = append(addresses, l.Addr().String())
		out[rank] = kept(steps)
		out[rank].Rank, out[rank].Trainers = &rank, n
		out[rank].Average = AverageConfig{Every: every, listener: l}
	}
	for rank := range out {
		out[rank].Average.Addresses = addresses
	}
	return out
}

func equalBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// A single trainer updates its weights as servers do, bit for bit.
func TestKeptWeightsAreTrainedAsOnServers(t *testing.T) {
	for _, optimizer := range []tableconf.Table{{Optimizer: "adagrad", LR: 0.05}, {Optimizer: "adam", LR: 0.01},
		{Optimizer: "momentum", LR: 0.01}} {
		t.Run(optimizer.Optimizer, func(t *testing.T) {
			run := func(cfg Config) []float32 {
				cfg.Dense = optimizer
				cfg.Dense.Schedule = &tableconf.Schedule{Kind: "linear", Steps: 20, End: 0.001}
				l := newLocal(t)
				j, err := NewJob(t.Context(), cfg, l, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := j.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				flat := denseOf(t, j)
				j.hybrid.fill(flat)
				return flat
			}
			trainers, servers := run(kept(15)), run(placed(15, ParameterConfig{Name: "*", Init: InitWorker}))
			if !equalBits(trainers, servers) {
				t.Error("the weights of the trainer are others than those of the servers")
			}
			half := run(placed(15, ParameterConfig{Name: "bottom.*", Placement: PlaceTrainers},
				ParameterConfig{Name: "*", Init: InitWorker}))
			if !equalBits(half, servers) {
				t.Error("with some weights at the trainer they are others than with all at the servers")
			}
		})
	}
}

// Trainers of mode async have the same weights after each average, and rows on the servers.
func TestTrainersAverage(t *testing.T) {
	const steps, every = 12, 3
	l, configs := newLocal(t), ranks(t, 3, steps, every)
	jobs := make([]*Job, len(configs))
	var all sync.WaitGroup
	for i, cfg := range configs {
		all.Go(func() {
			j, err := NewJob(t.Context(), cfg, l, nil)
			if err != nil {
				t.Error(err)
				return
			}
			jobs[i] = j
			if r, err := j.Run(t.Context()); err != nil || r.Steps != steps || r.HeldExamples == 0 {
				t.Errorf("rank %d: %+v, %v", i, r, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for i, j := range jobs {
		if !equalBits(j.hybrid.weights, jobs[0].hybrid.weights) {
			t.Errorf("ranks 0 and %d have other weights after the last average", i)
		}
		if i > 0 && equalBits(j.hybrid.state, jobs[0].hybrid.state) {
			t.Errorf("ranks 0 and %d have the same optimizer state: did they train on the same data?", i)
		}
		if j.layout.Rows != 0 {
			t.Errorf("%d rows of dense weights are at the servers", j.layout.Rows)
		}
	}
	alone := newLocal(t)
	one, err := NewJob(t.Context(), kept(steps), alone, nil)
	if err != nil {
		t.Fatal(err)
	}
	if equalBits(one.hybrid.weights, jobs[0].hybrid.weights) {
		t.Error("training has moved nothing")
	}
}

// A trainer that returns takes the weights and the optimizer state of the others.
func TestATrainerThatJoinsTakesOver(t *testing.T) {
	l, configs := newLocal(t), ranks(t, 2, 6, 2)
	configs[0].Steps = 0
	configs[0].Generator.Examples = 0
	ended := make(chan struct{})
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	all.Go(func() {
		defer close(ended)
		j, err := NewJob(t.Context(), configs[0], l, nil)
		if err == nil {
			_, err = j.Run(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	mustRun(t, configs[1], l, nil) // it ends, and sends its farewell
	again := configs[1]
	var err error
	if again.Average.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	took := false
	mustRun(t, again, l, func(e report.Event) { took = took || strings.Contains(e.Message, "took the dense weights") })
	if !took {
		t.Error("the trainer that came back did not take over what the other one has")
	}
	stop()
	all.Wait()
	<-ended
}

func TestKeptWeightsAreInTheState(t *testing.T) {
	cfg := kept(10)
	cfg.Dense = tableconf.Table{Optimizer: "adam", LR: 0.01}
	j, err := NewJob(t.Context(), cfg, newLocal(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := j.state(false)
	again, err := NewJob(t.Context(), cfg, newLocal(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Resume(s); err != nil {
		t.Fatal(err)
	}
	if !equalBits(again.hybrid.weights, j.hybrid.weights) || !equalBits(again.hybrid.state, j.hybrid.state) {
		t.Error("the weights or the optimizer state did not come back")
	}
	s.Tensors = s.Tensors[:len(s.Tensors)-1]
	if err := again.Resume(s); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("Resume without the optimizer state = %v, want InvalidArgument", err)
	}
	if _, err := again.Evaluate(t.Context()); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("Evaluate = %v, want Precondition: only the trainers have the weights", err)
	}
}

func TestWhatAveragingRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"mode", func(c *Config) { c.Mode = Geo }, "the mode is geo"},
		{"init", func(c *Config) { c.Parameters[0].Init = InitServer }, "each computes them from the seed"},
		{"every in mode sync", func(c *Config) { c.Mode, c.Average.Every = Sync, 3 },
			"averages the gradients of every step"},
		{"no addresses", func(c *Config) { c.Trainers = 2 }, "0 addresses for 2 trainers"},
		{"plaintext", func(c *Config) { c.Trainers, c.Average.Addresses = 2, []string{"127.0.0.1:1", "10.0.0.5:1"} },
			"without TLS it must be a loopback address"},
		{"nothing to average", func(c *Config) { c.Parameters, c.Average.Every = nil, 3 },
			"no parameter has placement: trainers"},
		{"every", func(c *Config) { c.Average.Every = -1 }, "every -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := kept(1)
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
			tc.change(&c)
			if err := c.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("Validate = %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
}

// In mode sync trainers update the weights that they keep as servers do, bit for bit: the mean of the gradients in
// rank order, then the update.
func TestKeptWeightsInModeSync(t *testing.T) {
	const steps = 8
	run := func(configs []Config) (weights [][]float32) {
		m := newTeam(t, len(configs))
		weights = make([][]float32, len(configs))
		var all sync.WaitGroup
		for i, cfg := range configs {
			cfg.Mode, cfg.Dense = Sync, tableconf.Table{Optimizer: "adam", LR: 0.01}
			all.Go(func() {
				j, err := NewJob(t.Context(), cfg, &worker{team: m, rank: i}, nil)
				if err == nil {
					_, err = j.Run(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
				weights[i] = denseOf(t, j)
				j.hybrid.fill(weights[i])
			})
		}
		all.Wait()
		return weights
	}
	trainers := run(ranks(t, 2, steps, 0))
	onServers := ranks(t, 2, steps, 0)
	for i := range onServers {
		onServers[i].Parameters = []ParameterConfig{{Name: "*", Init: InitWorker}}
		onServers[i].Average = AverageConfig{}
	}
	servers := run(onServers)
	if t.Failed() {
		return
	}
	if !equalBits(trainers[0], trainers[1]) {
		t.Error("the trainers have other weights")
	}
	if !equalBits(trainers[0], servers[0]) {
		t.Error("the trainers' weights are others than those that servers would have")
	}
}
