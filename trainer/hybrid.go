package trainer

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/trainer/average"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/state"
)

// AverageConfig configures the averaging of dense weights that the trainers keep.
type AverageConfig struct {
	// Addresses are the trainers' addresses for each other, host:port, by rank.
	Addresses []string `yaml:"addresses"`
	// Every is the number of steps between two averages of the weights in mode async; 0: 20. Mode sync averages the
	// gradients of every step.
	Every int `yaml:"every"`
	// TLS secures the connections between trainers; without it their addresses must be loopback addresses.
	TLS client.TLSFiles `yaml:"-"`

	listener net.Listener // for tests; nil: listen at this trainer's address
}

const defaultAverageEvery = 20

func (a *AverageConfig) every() int {
	if a.Every == 0 {
		return defaultAverageEvery
	}
	return a.Every
}

// trainersKeepWeights reports whether a parameter is placed on the trainers.
func (c *Config) trainersKeepWeights() bool {
	return slices.ContainsFunc(c.Parameters, func(p ParameterConfig) bool { return p.Placement == PlaceTrainers })
}

// validateHybrid returns an error for settings that do not fit weights that trainers keep.
func (c *Config) validateHybrid() error {
	kept := c.trainersKeepWeights()
	a := &c.Average
	switch {
	case !kept && (len(a.Addresses) > 0 || a.Every != 0):
		return invalid("average is set, but no parameter has placement: trainers")
	case !kept:
		return nil
	case c.Mode != Async && c.Mode != Sync:
		return invalid("parameters with placement: trainers need mode %[2]s or %[3]s, and the mode is %[1]s", c.Mode,
			Async, Sync)
	case c.Mode == Sync && (c.Quorum < 1 || c.Deadline > 0):
		return invalid("parameters with placement: trainers and quorum %v, deadline %v: every step averages over all "+
			"trainers, so it waits for all", c.Quorum, c.Deadline)
	case c.Mode == Sync && a.Every != 0:
		return invalid("average: every is %d, but mode %s averages the gradients of every step: remove it", a.Every,
			Sync)
	case a.Every < 0:
		return invalid("average: every %d: want ≥ 0", a.Every)
	case c.Trainers > 1 && len(a.Addresses) != c.Trainers:
		return invalid("average: %d addresses for %d trainers: want one for each, by rank", len(a.Addresses),
			c.Trainers)
	}
	if c.Trainers == 1 || !a.TLS.IsZero() {
		return nil
	}
	for _, address := range a.Addresses {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return invalid("average: address %s: without TLS it must be a loopback address, for example 127.0.0.1:7200",
				address)
		}
	}
	return nil
}

// hybrid holds the dense weights that this trainer keeps. Parameters are cut into rows as on the servers, and each
// row has the state of the same update rule. The goroutine of Run owns it.
type hybrid struct {
	j       *Job
	params  []int
	rule    optim.Rule
	rows    int
	weights []float32 // rows × dense.Width
	state   []float32 // rows × the length of the rule's state
	grads   []float32 // scratch, as weights
	steps   int
	rounds  int64 // rounds of averaging that are done
	members *average.Feed
	group   *average.Group  // nil with one trainer, and outside of train
	ctx     context.Context // of train
}

// newHybrid returns nil if the trainers keep no weights. All trainers begin with the weights of the seed; one that
// joins later takes the present weights of the others.
func newHybrid(j *Job) (*hybrid, error) {
	h := &hybrid{j: j, members: average.NewFeed()}
	for i, place := range j.layout.Places {
		if place == dense.Kept {
			h.params = append(h.params, i)
			h.rows += dense.Padded(j.layout.Params[i].Size()) / dense.Width
		}
	}
	if len(h.params) == 0 {
		return nil, nil
	}
	if j.cfg.Mode == Async && j.cfg.Trainers > 1 {
		j.pausePoint.SetPace(int64(j.cfg.Average.every()))
	}
	o, err := j.cfg.Dense.Rule()
	if err != nil {
		return nil, err
	}
	if h.rule, err = optim.New(o); err != nil {
		return nil, err
	}
	per := h.rule.StateLen(dense.Width)
	h.weights, h.grads = make([]float32, h.rows*dense.Width), make([]float32, h.rows*dense.Width)
	h.state = make([]float32, h.rows*per)
	flat := make([]float32, models.TotalSize(j.layout.Params))
	models.Initial(flat, j.layout.Params, j.cfg.Seed)
	h.take(h.weights, flat)
	for r := range h.rows {
		h.rule.InitState(h.weights[r*dense.Width:(r+1)*dense.Width], h.state[r*per:(r+1)*per])
	}
	return h, nil
}

// take copies the parameters from flat weights into rows.
func (h *hybrid) take(rows, flat []float32) {
	h.each(func(p, row int) {
		n := h.j.layout.Params[p].Size()
		copy(rows[row:row+n], flat[h.j.layout.Offsets[p]:])
		clear(rows[row+n : row+dense.Padded(n)])
	})
}

// fill copies the parameters into flat weights. A nil hybrid has none.
func (h *hybrid) fill(flat []float32) {
	if h == nil {
		return
	}
	h.each(func(p, row int) {
		at := h.j.layout.Offsets[p]
		copy(flat[at:at+h.j.layout.Params[p].Size()], h.weights[row:])
	})
}

func (h *hybrid) each(f func(param, row int)) {
	row := 0
	for _, p := range h.params {
		f(p, row)
		row += dense.Padded(h.j.layout.Params[p].Size())
	}
}

// open starts the averaging; ctx is the context of training.
func (h *hybrid) open(ctx context.Context) error {
	if h == nil {
		return nil
	}
	h.ctx = ctx
	c := &h.j.cfg
	if c.Trainers == 1 {
		return nil
	}
	if c.member == nil { // without a registry all trainers take part from the beginning
		h.begin(jobs.Members{Generation: 1}, c)
	}
	listener, dial, err := c.Average.network(c.rank())
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte("rowraft average\x00" + c.Job))
	h.group, err = average.Open(average.Options{
		Job: [16]byte(sum[:16]), Rank: c.rank(), Listener: listener, Dial: dial, Registry: h.members, Keeper: h,
		Limit: len(h.weights) + len(h.state) + 4,
	})
	return err
}

// averagers are the roles from which a trainer accepts numbers.
var averagers = []certs.Role{certs.Trainer, certs.Admin}

// network opens this trainer's port and returns a function that dials the others.
func (a *AverageConfig) network(rank int) (net.Listener, func(context.Context, string) (net.Conn, error), error) {
	l := a.listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", a.Addresses[rank]); err != nil {
			return nil, nil, invalid("average: %w", err)
		}
	}
	if a.TLS.IsZero() {
		return l, nil, nil
	}
	source, err := a.TLS.Open(nil)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		dialer := &tls.Dialer{Config: source.Client(averagers...)}
		return dialer.DialContext(ctx, "tcp", address)
	}
	return tls.NewListener(l, source.Server(averagers...)), dial, nil
}

// close ends the averaging. If training ended normally, it tells the other trainers, and serves them until they
// have ended too if this trainer is their hub.
func (h *hybrid) close(err error) error {
	if h == nil || h.group == nil {
		return nil
	}
	ctx := h.ctx
	if err != nil || ctx.Err() != nil { // a trainer that stops or fails leaves without waiting
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), member.LeavePatience)
		defer cancel()
	}
	if cerr := h.group.Close(ctx); cerr != nil && err == nil && h.ctx.Err() == nil {
		return fmt.Errorf("average: %w", cerr)
	}
	return nil
}

// learn takes a step with the gradients of a batch. A skipped batch contributes zeros, because the other trainers
// wait for this trainer's share.
func (h *hybrid) learn(w *work) error {
	if h == nil {
		return nil
	}
	if w.Empty {
		clear(h.grads)
	} else {
		h.take(h.grads, w.result.ParamGrads)
	}
	h.steps++
	if h.j.cfg.Mode == Sync {
		if behind, err := h.average(h.grads); err != nil || behind {
			return err
		}
		h.update(w.Step)
		return nil
	}
	if !w.Empty {
		h.update(w.Step)
	}
	every := h.j.cfg.Average.every()
	if h.steps%every == 0 {
		if _, err := h.average(h.weights); err != nil {
			return err
		}
	}
	h.j.pausePoint.Finish(h.rounds*int64(every) + int64(h.steps%every))
	return nil
}

// average replaces values by their mean over the trainers.
func (h *hybrid) average(values []float32) (behind bool, err error) {
	if h.group == nil {
		return false, nil
	}
	h.j.report.BeginWait()
	r, err := h.group.Average(h.ctx, values)
	h.j.report.EndWait()
	if err != nil {
		return false, fmt.Errorf("average with the other trainers: %w", err)
	}
	h.rounds = int64(r.Round)
	if r.Behind {
		h.j.report.Note("took the dense weights of another trainer, before round %d", r.Round)
	}
	return r.Behind, nil
}

// update applies h.grads with the learning rate of a step.
func (h *hybrid) update(step int64) {
	lr := h.j.cfg.Dense.Schedule.Rate(h.j.cfg.Dense.LR, step)
	if lr == 0 {
		lr = h.rule.LR()
	}
	per := len(h.state) / h.rows
	for r := range h.rows {
		at := r * dense.Width
		h.rule.Update(h.weights[at:at+dense.Width], h.state[r*per:(r+1)*per], h.grads[at:at+dense.Width], lr)
	}
}

// Save implements [average.Keeper].
func (h *hybrid) Save() []float32 { return slices.Concat(h.weights, h.state) }

// Load implements [average.Keeper].
func (h *hybrid) Load(values []float32) error {
	if len(values) != len(h.weights)+len(h.state) {
		return invalid("%d numbers, want %d weights and %d of optimizer state", len(values), len(h.weights),
			len(h.state))
	}
	copy(h.state, values[copy(h.weights, values):])
	return nil
}

// tensors returns the weights for a checkpoint.
func (h *hybrid) tensors() (out []state.Tensor) {
	if h == nil {
		return nil
	}
	return []state.Tensor{
		{Kind: state.Weights, Name: "trainers", Shape: []int{h.rows, dense.Width}, Values: slices.Clone(h.weights)},
		{Kind: state.OptimizerState, Name: "trainers", Shape: []int{len(h.state)}, Values: slices.Clone(h.state)},
	}
}

// resume takes the weights from a checkpoint, and returns their number.
func (h *hybrid) resume(s *state.State) (int, error) {
	if h == nil {
		return 0, nil
	}
	tensors := s.Tensors
	h.steps = int(s.Step) // the next average is due when it would have been without the stop
	if h.j.cfg.Mode == Async {
		h.j.pausePoint.Advance(s.Step % int64(h.j.cfg.Average.every()))
	}
	var all []float32
	for _, k := range []state.Kind{state.Weights, state.OptimizerState} {
		i := slices.IndexFunc(tensors, func(t state.Tensor) bool { return t.Kind == k && t.Name == "trainers" })
		if i < 0 {
			return 0, invalid("the state lacks the weights that the trainers keep")
		}
		all = append(all, tensors[i].Values...)
	}
	return 2, h.Load(all)
}

// begin announces a generation of the job to the averaging group. Without ranks it has all trainers.
func (h *hybrid) begin(m jobs.Members, c *Config) {
	next := average.Members{Generation: m.Generation, Ranks: slices.Clone(m.Ranks)}
	for rank := range c.Average.Addresses {
		if m.Ranks == nil {
			next.Ranks = append(next.Ranks, rank)
		}
	}
	for _, rank := range next.Ranks {
		if rank >= len(c.Average.Addresses) {
			return
		}
		next.Addresses = append(next.Addresses, c.Average.Addresses[rank])
	}
	h.members.Begin(next)
}

// errElsewhere means that only the trainers have the weights.
var errElsewhere = rowraft.Errorf(rowraft.CodePrecondition,
	"the trainers keep dense weights of this job: only they can score the held-out examples, when they end")
