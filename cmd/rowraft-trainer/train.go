package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/exported"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/runs"
	"github.com/rowraft/rowraft/trainer/tables"
)

// options are the flags of train and evaluate that are not in the configuration.
type options struct {
	config          string
	local           bool
	localShards     int
	localTables     *tables.Local // set by connect with local
	worker          string
	json            string
	model           string // file of a model's description: train writes it, evaluate reads it
	metrics         string // host:port, "": none
	progress        string
	progressFile    string
	noEval          bool
	generate        bool
	rank            int
	inFlight        int
	mustExist       bool            // all tables must exist: create none
	predict         *predictFlags   // write predictions, with mustExist
	export          *exportFlags    // write the model to a directory, with mustExist
	exportTo        string          // directory to which train writes the model
	from            string          // directory of an exported model, instead of a cluster
	exported        *exported.Model // the model in the directory from
	fresh, yes      bool            // delete the job's tables first; do not ask before that
	vocabCacheSize  int             // rows of the cache
	set             []string        // settings of the job's file that the command line changes, KEY=VALUE
	waitForTrainers trainerWaiter   // nil: this worker only registers
	notes           io.Writer       // standard error
	tls             rpc.TLSFiles
	insecure        bool

	flags    *trainer.Config      // values of the flags
	started  func() *progress     // instead of the progress that the flags ask for
	trained  func(*report.Result) // instead of printing the result
	recorded string               // name of the run whose record was written
	quiet    bool                 // do not say where the record is
}

// trainerWaiter registers a worker with its job, and waits for the other workers.
type trainerWaiter func(ctx context.Context, cfg *trainer.Config, enter func(context.Context) error) error

func newTrain() *cobra.Command {
	cmd := newJobCommand(options{})
	cmd.Use, cmd.Short = "train", "Train a model on a cluster, then score the held-out part"
	cmd.Long = `Train reads a job from a YAML file and flags; a flag wins over the file. It creates the tables of the job, or
continues with those that are there, trains, and scores the held-out part of the data.`
	cmd.Example = `  # a CSV file with a schema
  rowraft-trainer train --endpoints 127.0.0.1:7070 --insecure --data clicks.csv --schema clicks.yaml --json result.json

  # a job file; see examples/
  rowraft-trainer train --config examples/train-adult.yaml --endpoints 127.0.0.1:7070 --insecure

  # the second of two trainers on generated data
  rowraft-trainer train --generate --endpoints 127.0.0.1:7070 --insecure --trainers 2 --rank 1

  # without a cluster
  rowraft-trainer train --config examples/train-adult.yaml --local`
	return cmd
}

func newEval() *cobra.Command {
	cmd := newJobCommand(options{mustExist: true})
	cmd.Use, cmd.Short = "evaluate", "Score examples with the weights the cluster has now"
	cmd.Aliases = []string{"eval"}
	cmd.Long = `Evaluate trains nothing. The tables of the job must be there. With --data it scores all examples of that file, otherwise the
held-out examples of the job. The model is that of a job (--config and the flags of train), or of the file that train --save-model
wrote (--model): then no job file and no schema are needed.`
	cmd.Example = "  rowraft-trainer evaluate --model ctr.model --data test.csv --endpoints 127.0.0.1:7070 --insecure\n" +
		"  rowraft-trainer evaluate --config job.yaml --endpoints 127.0.0.1:7070 --insecure --json -"
	return cmd
}

// newJobCommand returns a command that makes a Job from o and its flags, and runs it.
func newJobCommand(o options) *cobra.Command { return newJobCommandOf(&o) }

func newJobCommandOf(o *options) *cobra.Command {
	set := trainer.DefaultConfig() // the values of the flags; the defaults are for the help
	o.flags = &set
	cmd := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error {
		o.notes = cmd.ErrOrStderr()
		cfg, err := o.load(cmd, &set)
		if err != nil {
			return err
		}
		if o.fresh {
			if err := o.startOver(cmd, &cfg); err != nil {
				return err
			}
		}
		if o.export != nil {
			return o.export.run(cmd.Context(), o, cfg, cmd.OutOrStdout())
		}
		err = o.run(cmd.Context(), cfg, cmd.ErrOrStderr())
		if rowraft.CodeOf(err) == rowraft.CodeTableExists {
			err = cli.Hint(err, fmt.Sprintf("the tables of job %s keep their shape: "+
				"train with it, choose another --job, or let --fresh delete them", cfg.Job))
		}
		return err
	}}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "YAML file with the job")
	f.StringArrayVar(&o.set, "set", nil,
		"KEY=VALUE: a setting of the job's file, as embeddings.lr=0.05; repeat it for several")
	f.StringVar(&set.Job, "job", set.Job, "name of the job, and of its tables")
	f.StringSliceVar(&set.Endpoints, "endpoints", nil, "host:port of one or more servers; the others are found")
	f.BoolVar(&o.local, "local", false, "keep the tables in this process: no cluster, nothing is kept")
	f.IntVar(&o.localShards, "local-shards", 4, "shards that --local pretends to have")
	o.securityFlags(f)
	f.StringVar(&o.metrics, "metrics-listen", "", "host:port of /metrics for Prometheus over HTTP, with the same "+
		"certificates, or without on loopback only; default: none")
	f.StringVar(&set.DType, "dtype", set.DType, "numbers on the wire: float32, or bfloat16 with half the bytes")
	f.StringVar(&set.Mode, "mode", set.Mode, "how trainers work together: async, sync, ssp or geo")
	f.IntVar(&o.inFlight, "in-flight", 0, "unacknowledged pushes while training continues; 0: one thing after another, "+
		"reproducible; default 8 in mode async with adaptive optimizers, else 2")
	f.Uint64Var(&set.Seed, "seed", set.Seed, "of the initial weights")
	f.IntVar(&o.rank, "rank", 0, "which of the trainers this is, from 0; not set: the scheduler says")
	f.IntVar(&set.Trainers, "trainers", set.Trainers, "trainers that the job expects at its start; more "+
		"may join if the scheduler divides the data")
	f.StringVar(&o.worker, "worker", "", "name under which the scheduler knows this trainer, which keeps it when it is "+
		"started again; default its rank, or host, boot and process id")
	f.IntVar(&set.Batch, "batch", set.Batch, "examples per step")
	f.IntVar(&set.Threads, "threads", set.Threads, "threads that compute a step, each a slice of the batch")
	f.IntVar(&set.Epochs, "epochs", 0, "passes over the data; default 1, or until --steps")
	f.Int64Var(&set.Steps, "steps", 0, "steps of this trainer at most; 0: as the epochs say")
	f.DurationVar(&set.Patience, "patience", set.Patience, "how long one pull or push may take before the run fails")
	f.StringArrayVar((*[]string)(&set.Data.File), "data", nil, "data file or quoted pattern, .gz and .zst too; repeat "+
		"it for several; the last fifth is held out")
	f.StringVar(&set.Data.Follow, "follow", "",
		"file or folder of files that grow, or - for standard input: train on what comes, without an end")
	f.DurationVar(&set.Data.Window, "window", 0,
		"how long a window of --follow is, of which loss and AUC are logged; default 1m")
	f.StringVar(&set.Data.Schema, "schema", "", "YAML file that describes the data file")
	f.StringArrayVar((*[]string)(&set.Validation), "validation", nil,
		"file of held-out examples, instead of the last fifth of --data: "+
			"scored at the end, and by the trainer of the lowest rank after each epoch and after ten times as many "+
			"trained examples")
	f.BoolVar(&o.generate, "generate", false, "train on the default generated click log")
	f.IntVar(&set.Model.Dim, "dim", set.Model.Dim, "weights per embedding row")
	f.StringVar(&set.Resume, "resume", "", "continue exactly from this checkpoint, DESTINATION/NAME, which was restored; "+
		"auto: from the one that was; without one it begins at step 1 if the job's tables hold no rows, and fails if they do")
	f.StringVar(&set.Checkpoint.AtEnd, "checkpoint-at-end", "",
		"make a checkpoint at this destination when all trainers of the job are done")
	f.BoolVar(&set.Audit, "audit", false, "bump this trainer's dimension of an audit row per shard with each push")
	f.BoolVar(&o.noEval, "no-eval", false, "do not score the held-out part")
	f.StringVar(&set.Device, "device", set.Device, "that computes the model: cpu, cuda, or auto: cuda if it can be used")
	if !o.mustExist {
		f.StringVar(&set.Runs, "runs", "", "folder to which a record of the run and its page are written; default: none")
		f.BoolVar(&o.fresh, "fresh", false, "start over: delete the job's tables first; it lists them and asks")
		f.BoolVar(&o.yes, "yes", false, "with --fresh: do not ask")
		f.StringVar(&o.model, "save-model", "", "file to which this trainer writes the description of the trained model at "+
			"its end, for evaluate --model; the weights stay in the cluster")
		f.StringVar(&o.exportTo, "export", "", "directory to which this trainer writes the trained model at its end, as "+
			"rowraft-trainer export does; it must not exist")
	} else {
		f.StringVar(&o.model, "model", "", "file of train --save-model, instead of --config")
		if o.export == nil {
			f.StringVar(&o.from, "from", "", "directory of rowraft-trainer export, instead of --config and a cluster")
		}
	}
	f.StringVar(&o.json, "json", "", "write the result as JSON to this file, - for standard output")
	f.StringVar(&o.progress, "progress", "auto",
		"auto (a bar on a terminal, else lines), plain, steps (a line every 10 steps), json (one event per line) or none")
	f.StringVar(&o.progressFile, "progress-file", "",
		"file to which progress is appended, instead of standard error; at 64 MiB it becomes FILE.1, and another begins")
	return cmd
}

// load reads the configuration file and applies the given flags over it.
func (o *options) load(cmd *cobra.Command, set *trainer.Config) (trainer.Config, error) {
	cfg := trainer.DefaultConfig()
	if o.config != "" {
		var err error
		if cfg, err = trainer.LoadConfig(o.config); err != nil {
			return cfg, err
		}
	}
	if o.mustExist && o.model != "" {
		if o.config != "" {
			return cfg, cli.Usagef("--model and --config: want one of them")
		}
		var err error
		if cfg, err = trainer.LoadModel(o.model); err != nil {
			return cfg, err
		}
	}
	if o.from != "" {
		if o.config != "" || o.model != "" {
			return cfg, cli.Usagef("--from has the model and its weights: remove --config and --model")
		}
		var err error
		if o.exported, err = exported.Open(cmd.Context(), o.from); err != nil {
			return cfg, err
		}
		cfg = o.exported.Config()
	}
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	over(given("job"), &cfg.Job, set.Job)
	over(given("endpoints"), &cfg.Endpoints, set.Endpoints)
	over(given("dtype"), &cfg.DType, set.DType)
	over(given("mode"), &cfg.Mode, set.Mode)
	over(given("in-flight"), &cfg.InFlight, &o.inFlight)
	over(given("seed"), &cfg.Seed, set.Seed)
	over(given("rank"), &cfg.Rank, &o.rank)
	over(given("trainers"), &cfg.Trainers, set.Trainers)
	over(given("batch"), &cfg.Batch, set.Batch)
	over(given("threads"), &cfg.Threads, set.Threads)
	over(given("epochs"), &cfg.Epochs, set.Epochs)
	over(given("steps"), &cfg.Steps, set.Steps)
	over(given("patience"), &cfg.Patience, set.Patience)
	over(given("dim"), &cfg.Model.Dim, set.Model.Dim)
	if given(flagVocabCacheSize) {
		cfg.Cache.SetRows(o.vocabCacheSize, cfg.Model.Dim)
	}
	over(given("resume"), &cfg.Resume, set.Resume)
	over(given("checkpoint-at-end"), &cfg.Checkpoint.AtEnd, set.Checkpoint.AtEnd)
	over(given("audit"), &cfg.Audit, set.Audit)
	over(given("device"), &cfg.Device, set.Device)
	over(given("runs"), &cfg.Runs, set.Runs)
	changes, err := parseSettings(o.set)
	if err != nil {
		return cfg, err
	}
	for _, s := range changes {
		if err := s.apply(&cfg); err != nil {
			return cfg, err
		}
	}
	if given("data") { // a file on the command line replaces a generator in the job
		cfg.Data.File, cfg.Data.Images, cfg.Data.Labels, cfg.Generator = set.Data.File, "", "", nil
	}
	if given("schema") {
		cfg.Data.Described = nil
	}
	cfg.Data.NoFit = o.mustExist && (given("data") || given("validation"))
	switch {
	case o.predict != nil && !given("data"):
		return cfg, cli.Usagef("no examples: give --data FILE")
	case o.predict != nil && given("validation"):
		return cfg, cli.Usagef("--validation: predict has no held-out examples")
	case o.predict != nil:
		o.predict.configure(&cfg)
	case o.mustExist && given("data"): // all of its examples are scored
		cfg.Validation = cfg.Data.File
	}
	over(given("validation"), &cfg.Validation, set.Validation)
	over(given("schema"), &cfg.Data.Schema, set.Data.Schema)
	if given("follow") { // a stream replaces it like a file
		cfg.Data.Follow, cfg.Data.File, cfg.Data.Images, cfg.Data.Labels, cfg.Generator = set.Data.Follow, nil, "", "", nil
	}
	over(given("window"), &cfg.Data.Window, set.Data.Window)
	if o.generate && cfg.Generator == nil {
		if given("data") {
			return cfg, cli.Usagef("--data and --generate: want one of them")
		}
		g := data.DefaultGenerator()
		cfg.Generator, cfg.Data.File = &g, nil
	}
	if o.noEval {
		no := false
		cfg.Evaluate = &no
	}
	if o.local && o.mustExist {
		return cfg,
			cli.Usagef("--local: tables in this process are new, there is nothing to score; train --local scores at its end")
	}
	if _, err := os.Stat(filepath.Dir(o.model)); err != nil {
		return cfg, cli.Usagef("--save-model %s: %w", o.model, err)
	}
	if _, err := os.Stat(o.exportTo); o.exportTo != "" && err == nil {
		return cfg, cli.Usagef("--export %s: it exists; give the name of a new directory", o.exportTo)
	}
	if _, err := os.Stat(filepath.Dir(o.exportTo)); err != nil {
		return cfg, cli.Usagef("--export %s: %w", o.exportTo, err)
	}
	if f := o.predict; f != nil {
		if _, err := os.Stat(filepath.Dir(f.out)); err != nil {
			return cfg, cli.Usagef("--out %s: %w", f.out, err)
		}
	}
	if _, err := os.Stat(filepath.Dir(o.json)); err != nil { // check it now rather than after the run
		return cfg, cli.Usagef("--json %s: %w", o.json, err)
	}
	if o.local && (cfg.Resume != "" || cfg.Checkpoint != member.CheckpointConfig{}) {
		return cfg, cli.Usagef("--local: tables in this process have no checkpoints")
	}
	if o.fresh && (o.local || cfg.Resume != "") {
		return cfg, cli.Usagef("--fresh deletes the tables of the job on a cluster: it is not for --local or --resume")
	}
	if o.yes && !o.fresh {
		return cfg, cli.Usagef("--yes is for --fresh")
	}
	offline := o.local || o.exported != nil || o.export != nil && o.export.checkpoint != ""
	if !offline && len(cfg.Endpoints) == 0 {
		return cfg, cli.DevHint(cli.Usagef("no cluster: give --endpoints host:port, or --local to train without one"))
	}
	if !offline && o.insecure != o.tls.IsZero() {
		return cfg, cli.DevHint(
			cli.Usagef("give either --cert, --key and --cacert, or --insecure for plaintext on loopback"))
	}
	cfg.Average.TLS = o.tls
	if o.export != nil { // it needs no data
		return cfg, nil
	}
	return cfg, cfg.Validate()
}

func over[T any](given bool, dst *T, v T) {
	if given {
		*dst = v
	}
}

// once makes the job and runs it, and writes progress and result. It returns an errLost if the worker may register
// with the job again.
func (o *options) once(ctx context.Context, cfg *trainer.Config) (err error) {
	ops, err := listenMetrics(o.metrics, &o.tls)
	if err != nil {
		return err
	}
	defer ops.close()
	p, err := o.newProgress()
	if err != nil {
		return err
	}
	defer p.close()
	var head runs.Head
	if o.isRecorded(cfg) {
		if head, err = o.headOf(cfg); err != nil {
			return err
		}
	}
	tables, c, err := o.connect(ctx, cfg)
	if err != nil {
		return err
	}
	if c != nil {
		defer c.Close()
	}
	defer func() {
		if err != nil {
			trainer.Abandon(ctx, cfg, err)
		}
	}()
	rec, err := o.record(cfg, head)
	if err != nil {
		return err
	}
	var result *report.Result
	defer func() { rec.end(ctx, result, err, o) }()
	job, err := trainer.NewJob(ctx, *cfg, tables, func(e report.Event) { p.observe(e); rec.observe(e) })
	if err != nil {
		return err
	}
	ops.setRun(cfg.Job, job.Now)
	if o.predict == nil {
		fmt.Fprintln(o.notes, job.Device().Line())
	}
	result, err = o.trainOrScore(ctx, job, cfg, c)
	p.close()
	rec.end(ctx, result, err, o)
	if err != nil && trainer.Lost(ctx, cfg) {
		return errLost{err}
	}
	if o.json != "" && result != nil {
		if werr := cli.WriteJSON(o.json, result); werr != nil && err == nil {
			err = werr
		}
	}
	if o.trained != nil {
		o.trained(result)
	} else if result != nil && o.json != "-" && o.predict == nil && (err == nil || result.Steps > 0) {
		printResult(os.Stdout, result)
	}
	if err == nil && !o.mustExist && o.model != "" {
		if err = cfg.SaveModel(o.model); err != nil {
			err = fmt.Errorf("--save-model: %w", err)
		}
	}
	if err == nil && o.exportTo != "" && !result.Interrupted {
		err = o.exportTrained(ctx, job, c)
	}
	if err == nil && (result.Interrupted && !result.Stopped || ctx.Err() != nil) {
		err = cli.ErrInterrupted
	}
	return err
}

// trainOrScore trains, or only scores; c is nil without a cluster.
func (o *options) trainOrScore(ctx context.Context, job *trainer.Job, cfg *trainer.Config,
	c *client.Client) (*report.Result, error) {
	switch {
	case o.predict != nil:
		return o.predict.run(ctx, job, taskNames(cfg))
	case o.mustExist:
		return job.Evaluate(ctx)
	case c == nil:
		return job.Run(ctx)
	}
	saved, err := trainer.FindSaved(ctx, cfg, c)
	if err != nil {
		return nil, err
	}
	return job.RunOn(ctx, c, saved)
}

// connect opens the tables and sets this trainer's rank. The client is nil without a cluster.
func (o *options) connect(ctx context.Context, cfg *trainer.Config) (tables.Tables, *client.Client, error) {
	dtype, _ := rowraft.ParseDType(cfg.DType) // Validate has checked it
	if o.exported != nil {
		return o.exported, nil, nil
	}
	if o.local {
		if cfg.Trainers > 1 {
			return nil, nil, cli.Usagef("--local with %d trainers: they would not share anything", cfg.Trainers)
		}
		t, err := tables.NewLocal(o.localShards, dtype)
		o.localTables = t
		return t, nil, err
	}
	c, err := o.dial(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	if !o.mustExist {
		enter := func(ctx context.Context) error { return trainer.Enter(ctx, cfg, c, o.worker) }
		err = o.nameWorker(ctx, cfg, c)
		if err == nil && o.waitForTrainers == nil {
			err = enter(ctx)
		} else if err == nil {
			err = o.waitForTrainers(ctx, cfg, enter)
		}
		if err != nil {
			c.Close()
			return nil, nil, err
		}
	}
	t := tables.NewCluster(c)
	if o.mustExist {
		t = tables.OpenCluster(c)
	}
	t.SetReads(cfg.Reads)
	return t, c, nil
}

// noteAfter is how long dial waits before it reports that no server answers.
const noteAfter = 3 * time.Second

// dial returns a client of the cluster.
func (o *options) dial(ctx context.Context, cfg *trainer.Config) (*client.Client, error) {
	dtype, _ := rowraft.ParseDType(cfg.DType) // Validate has checked it
	dial, cancel := context.WithTimeout(ctx, cfg.Patience)
	defer cancel()
	const check = "do the servers run, is --endpoints right, and do both sides use TLS or both --insecure?"
	var noted sync.WaitGroup
	connected := make(chan struct{})
	noted.Go(func() {
		select {
		case <-connected:
		case <-time.After(min(noteAfter, cfg.Patience/2)):
			fmt.Fprintf(o.notes, "no answer from %s yet; waiting up to %v (--patience): %s\n",
				strings.Join(cfg.Endpoints, ", "), cfg.Patience, check)
		}
	})
	defer noted.Wait()
	defer close(connected)
	c, err := client.Dial(dial, client.Options{Endpoints: cfg.Endpoints, TLS: o.tls, DType: dtype,
		CacheBytes: cfg.Cache.ClientBytes()})
	if err != nil && ctx.Err() == nil && rowraft.CodeOf(err).Retryable() { // no server answered in time
		err = cli.Hint(rowraft.Errorf(rowraft.CodeDeadline, "no cluster within %v: %w", cfg.Patience, err), check)
	}
	return c, err
}

func printResult(w io.Writer, r *report.Result) {
	t := cli.NewBox(w)
	row := func(name string, format string, args ...any) {
		t.AppendRow(table.Row{name, fmt.Sprintf(format, args...)})
	}
	row("data", "%s", r.Data)
	if r.Steps > 0 {
		if r.ResumedFrom == "" {
			row("trained", "%d steps, %d examples in %.1f s on %s", r.Steps, r.Examples, r.Seconds, r.Device)
		} else {
			row("trained", "%d steps, %d examples in all; %d steps now, in %.1f s on %s",
				r.Steps, r.Examples, r.Steps-r.ResumedAtStep, r.Seconds, r.Device)
		}
		row("speed", "%.0f examples/s", r.ExamplesPerSecond)
		row("pushes", "%d sent, %d acknowledged, %d unknown", r.PushesSent, r.PushesAcknowledged, r.PushesUnknown)
	}
	if all := r.RowsReused + r.RowsPulled; all > 0 {
		age := fmt.Sprintf("%.1f batches", r.ReusedSteps)
		if r.ReusedSeconds > 0 {
			age = fmt.Sprintf("%.1f s", r.ReusedSeconds)
		}
		row("cache", "%.1f %% of %s rows from copies, %s old; %s saved", 100*float64(r.RowsReused)/float64(all),
			cli.Count(uint64(all)), age, humanize.IBytes(uint64(r.BytesSaved)))
	}
	if r.BatchesLate > 0 {
		row("batches late", "%d, the others went on without them", r.BatchesLate)
	}
	if r.BatchesSkipped > 0 {
		row("batches skipped", "%d, not finite", r.BatchesSkipped)
	}
	if r.HeldExamples > 0 {
		what := "held out"
		if r.Steps == 0 { // evaluate scores all examples of its file
			what = "scored"
		}
		row(what, "%d examples", r.HeldExamples)
		switch {
		case r.RMSE == r.RMSE:
			row("RMSE", "%.4f", r.RMSE)
		case r.Accuracy == r.Accuracy:
			row("accuracy", "%.4f", r.Accuracy)
		default:
			row("AUC", "%s", withBest(r.AUC, r.BestAUC))
		}
		if r.RMSE != r.RMSE {
			row("log loss", "%s", withBest(r.LogLoss, r.BestLogLoss))
		}
		if c := r.Calibration; c != nil && known(c.Ratio) {
			row("calibration", "%s", calibration(c))
		}
	}
	bestRows(row, r)
	if r.ReadAgainAtMost != nil && *r.ReadAgainAtMost > 0 {
		row("read again", "%d to %d examples of the job", *r.ReadAgainAtLeast, *r.ReadAgainAtMost)
	}
	if r.ResumedFrom != "" {
		row("continued from", "%s, after step %d", r.ResumedFrom, r.ResumedAtStep)
	}
	if r.Checkpoint != "" {
		row("checkpoint", "%s", r.Checkpoint)
	}
	if r.StopReason != "" {
		row("stopped", "%s", r.StopReason)
	} else if r.Stopped {
		row("stopped", "with its job, at %s", r.FinishedAt.Format(time.TimeOnly))
	} else if r.Interrupted {
		row("interrupted", "at %s", r.FinishedAt.Format(time.TimeOnly))
	}
	t.Render()
	if r.Steps == 0 && r.Calibration != nil && len(r.Calibration.Bins) > 0 { // evaluate
		printCalibration(w, r.Calibration)
	}
}

func withBest(v, best report.Number) string {
	s := fmt.Sprintf("%.4f", v)
	if best == best {
		s += fmt.Sprintf(" (best possible %.4f)", best)
	}
	return strings.ReplaceAll(s, "NaN", "not defined: all labels are equal")
}
