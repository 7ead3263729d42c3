package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/launch"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
)

const (
	defaultStartTimeout = 10 * time.Minute
	// stepLineEvery is how many steps pass between two lines of --progress steps.
	stepLineEvery = 10

	flagVocabCacheSize = "vocab-cache-size"
)

// startFlags are the flags that `start` has in addition to those of `train`.
type startFlags struct {
	values  launch.Values
	timeout time.Duration
	name    string
	plan    launch.Plan
}

// newStart returns the command start: train, with the cluster and the worker's place from the variables of a
// framework.
func newStart() *cobra.Command { return newStartOf(new(options)) }

func newStartOf(o *options) *cobra.Command {
	var f startFlags
	cmd := newJobCommandOf(o)
	train := cmd.RunE
	cmd.Use, cmd.Short = "start", "Train as a worker of a cluster that the environment describes"
	cmd.Long = `Start is train for scripts of other parameter servers: environment variables say where the servers are and which worker
this is. It waits for servers that are not up yet, and says which, and begins when all workers are there.

MindSpore's: MS_ROLE=MS_WORKER, MS_SCHED_HOST, MS_SCHED_PORT, MS_WORKER_NUM, and MS_NODE_ID if it is set. Paddle's: TRAINING_ROLE=TRAINER,
PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ID. Servers and the scheduler: rowraft start.

A flag wins over its ROWRAFT_ variable, that over those variables, and they over the job's file.`
	cmd.Example = `  MS_ROLE=MS_WORKER MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=8118 MS_WORKER_NUM=1 rowraft-trainer start --config job.yaml --insecure

  TRAINING_ROLE=TRAINER PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:6174 PADDLE_TRAINERS_NUM=1 \
    PADDLE_TRAINER_ID=0 rowraft-trainer start --config job.yaml --insecure`
	fl := cmd.Flags()
	fl.StringVar(&f.values.Role, launch.FlagRole, "", "worker; MS_ROLE, TRAINING_ROLE")
	fl.StringVar(&f.values.Scheduler, launch.FlagScheduler, "",
		"host:port of the scheduler; MS_SCHED_HOST and MS_SCHED_PORT")
	fl.StringSliceVar(&f.values.ServerList, launch.FlagServerList, nil,
		"host:port of every server, where there is no process of the scheduler; PADDLE_PSERVERS_IP_PORT_LIST")
	fl.IntVar(&f.values.Workers, launch.FlagWorkers, 0, "workers of the job; MS_WORKER_NUM, PADDLE_TRAINERS_NUM")
	fl.DurationVar(&f.timeout, "start-timeout", defaultStartTimeout,
		"how long to wait for servers and workers; then the process ends with exit code 4")
	fl.StringVar(&f.name, launch.FlagName, "", "as --worker; MS_NODE_ID")
	fl.IntVar(&o.vocabCacheSize, flagVocabCacheSize, 0, "rows of the embedding table that the worker keeps copies of, up "+
		"to 8 steps old: the cache of the job's file, in rows; 0: none")
	fl.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "vocab_cache_size" { // as scripts for MindSpore have it
			name = flagVocabCacheSize
		}
		return pflag.NormalizedName(name)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.read(cmd.Flags()); err != nil {
			return err
		}
		if f.timeout <= 0 {
			return cli.Usagef("--start-timeout %v: want > 0", f.timeout)
		}
		if o.vocabCacheSize < 0 {
			return cli.Usagef("--%s %d: want ≥ 0", flagVocabCacheSize, o.vocabCacheSize)
		}
		if o.insecure != o.tls.IsZero() {
			return cli.Usagef("give either --cert, --key and --cacert, or --insecure for plaintext on loopback")
		}
		if o.config != "" { // check it now rather than after a wait
			if _, err := trainer.LoadConfig(o.config); err != nil {
				return err
			}
		}
		if err := f.await(cmd.Context(), o); err != nil {
			return err
		}
		return train(cmd, args)
	}
	return cmd
}

// await waits for the servers, and makes train wait for the other workers.
func (f *startFlags) await(ctx context.Context, o *options) error {
	inTime, cancel := context.WithTimeoutCause(ctx, f.timeout,
		rowraft.Errorf(rowraft.CodeDeadline, "the cluster has not started within %v", f.timeout))
	defer cancel()
	w := &waiter{tls: o.tls, out: os.Stderr, poll: waitPoll, every: waitEvery}
	if err := w.servers(inTime, f.endpoints()); err != nil {
		return interruptedOr(ctx, err)
	}
	if f.plan.Scheduler == "" { // ranks are given, and no scheduler counts the workers
		fmt.Fprintln(os.Stderr, "Cluster is successfully initialized.")
		return nil
	}
	o.waitForTrainers = func(ctx context.Context, cfg *trainer.Config, enter func(context.Context) error) error {
		if err := enter(ctx); err != nil {
			return err
		}
		inTime, cancel := context.WithTimeoutCause(ctx, f.timeout,
			rowraft.Errorf(rowraft.CodeDeadline, "job %s does not have all of its workers after %v", cfg.Job, f.timeout))
		defer cancel()
		if err := w.workers(inTime, f.plan.Scheduler, cfg.Job, f.plan.Workers); err != nil {
			return interruptedOr(ctx, err)
		}
		fmt.Fprintln(os.Stderr, "Cluster is successfully initialized.")
		return nil
	}
	return nil
}

// interruptedOr returns err, or the interruption if err only means that a signal ended ctx.
func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return cli.ErrInterrupted
	}
	return err
}

// read sets the plan, and the flags of train that follow from it.
func (f *startFlags) read(flags *pflag.FlagSet) error {
	env, err := launch.Read(os.LookupEnv)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	for _, w := range env.Warnings {
		fmt.Fprintln(os.Stderr, "rowraft-trainer: warning:", w)
	}
	f.values.Variables, f.values.Rank = make(map[string]string), -1
	for _, s := range env.Settings {
		fl := flags.Lookup(s.Flag)
		if fl == nil || fl.Changed {
			continue
		}
		f.values.Variables[s.Flag] = s.Variable
		if err := flags.Set(s.Flag, s.Value); err != nil {
			return cli.Usagef("%s: %w", s.Variable, err)
		}
	}
	if rank := flags.Lookup(launch.FlagRank); rank.Changed {
		f.values.Rank, _ = strconv.Atoi(rank.Value.String())
	}
	if f.plan, err = f.values.Plan(); err != nil {
		return cli.Usagef("%w", err)
	}
	if f.plan.Role != launch.Worker {
		return cli.Usagef(
			"this process is a %s: `rowraft-trainer start` runs workers; start servers and the scheduler with `rowraft start`",
			f.plan.Role)
	}
	follows := map[string]string{
		"endpoints": strings.Join(f.endpoints(), ","),
		"trainers":  strconv.Itoa(f.plan.Workers),
		"progress":  "steps",
	}
	if f.name != "" {
		follows["worker"] = f.name
	}
	for name, value := range follows {
		if fl := flags.Lookup(name); fl.Changed {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return cli.Usagef("--%s: %w", name, err)
		}
	}
	fmt.Fprintf(os.Stderr, "Bind to role=worker, ip=%s, workers=%d\n", launch.HostTowards(f.endpoints()[0]),
		f.plan.Workers)
	return nil
}

// endpoints returns the addresses of the cluster.
func (f *startFlags) endpoints() []string {
	if f.plan.Scheduler != "" {
		return []string{f.plan.Scheduler}
	}
	return f.plan.ServerList
}

// stepProgress prints a line every few steps, in the wording of other frameworks.
func stepProgress(out io.Writer) *progress {
	lines := lineProgress(out)
	return &progress{close: func() {}, observe: func(e report.Event) {
		if e.Event != report.EventStep {
			lines.observe(e)
		} else if e.Step%stepLineEvery == 0 {
			fmt.Fprintf(out, "epoch: %d, step: %d, loss is %.6f\n", e.Epoch, e.Step, e.Loss)
		}
	}}
}
