package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft-trainer/server"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/copies"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/exported"
	"github.com/rowraft/rowraft/trainer/serving"
	"github.com/rowraft/rowraft/trainer/tables"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	options
	endpoints []string
	patience  time.Duration
	maxAge    time.Duration
	to        server.Config
}

func newServe() *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use: "serve [JOB.yaml]", Short: "Answer requests for predictions over HTTP and gRPC",
		Long: `Serve computes predictions of a trained model for the examples of requests, over HTTP (POST /v1/score, JSON or lines
of the data's format) and gRPC (rowraft.serving.v1.Scoring). JOB.yaml is the file of a job, or of train --save-model.
The weights are those that the cluster has now: no older than reads.max_age of the job (--max-age), 10 s by default.
Nothing is written: a certificate of the role reader is enough, and an unknown id has its initial weights. With --from
the model and its weights are those of rowraft-trainer export, and no cluster is needed.

SIGINT and SIGTERM end it after the requests that have begun.`,
		Example: "  rowraft-trainer serve ctr.model --endpoints 127.0.0.1:7070 --insecure\n" +
			"  rowraft-trainer serve job.yaml --endpoints 10.0.0.1:7070 --certs certs --listen 10.0.0.9:7500\n" +
			"  rowraft-trainer serve --from exported --insecure",
		Args: func(cmd *cobra.Command, args []string) error {
			if o.from == "" {
				return cli.OneArg("the file of a job or a model, or --from DIRECTORY")(cmd, args)
			}
			return cli.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.notes = cmd.ErrOrStderr()
			open := o.openExport
			if o.from == "" {
				open = func(ctx context.Context) (*weightsSource, error) { return o.openCluster(ctx, args[0]) }
			}
			return o.serve(cmd.Context(), open, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.endpoints, "endpoints", nil, "host:port of one or more servers; the others are found")
	o.securityFlags(f)
	f.StringVar(&o.from, "from", "", "directory of rowraft-trainer export, instead of JOB.yaml and a cluster")
	f.StringVar(&o.to.HTTP, "listen", "127.0.0.1:7500", "host:port of HTTP; empty: none")
	f.StringVar(&o.to.GRPC, "grpc-listen", "127.0.0.1:7501", "host:port of gRPC; empty: none")
	f.DurationVar(&o.maxAge, "max-age", 0, "how old weights may be; default reads.max_age of the job, or 10s")
	f.DurationVar(&o.patience, "patience", 2*time.Minute, "how long to wait for the cluster at the start")
	l := &o.to.Limits
	f.DurationVar(&l.Timeout, "timeout", 5*time.Second, "how long a request may take that states no shorter time")
	f.IntVar(&l.Examples, "max-examples", 4096, "examples of a request")
	f.Int64Var(&l.Bytes, "max-bytes", 4<<20, "bytes of a request")
	f.IntVar(&l.Queue, "queue", 16384, "examples that may wait; further requests are refused")
	cli.Exclusive(f, "weights", []string{"from"}, []string{"endpoints", "max-age"})
	return cmd
}

// securityFlags are the flags of TLS.
func (o *options) securityFlags(f *pflag.FlagSet) {
	f.StringVar(&o.tls.CA, "cacert", "", "PEM file with the CA of the cluster; with --cert and --key")
	f.StringVar(&o.tls.Cert, "cert", "", "PEM file with this client's certificate")
	f.StringVar(&o.tls.Key, "key", "", "PEM file with the key of --cert")
	f.Func("certs",
		"directory with ca.pem, client.pem and client.key, as 'rowraft cert lab' makes it; instead of the three above",
		func(dir string) error {
			o.tls = rpc.TLSFiles{Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key"),
				CA: filepath.Join(dir, "ca.pem")}
			return nil
		})
	f.BoolVar(&o.insecure, "insecure", false, "talk plaintext, to a cluster that serves loopback addresses only")
	cli.ExclusiveSecurity(f)
}

// check returns the first problem of the flags.
func (o *serveOptions) check() error {
	l := &o.to.Limits
	switch {
	case o.insecure != o.tls.IsZero():
		return cli.DevHint(cli.Usagef("give either --cert, --key and --cacert, or --insecure for plaintext on loopback"))
	case o.from != "" && (len(o.endpoints) > 0 || o.maxAge != 0):
		return cli.Usagef("--from has the model and its weights: remove --endpoints and --max-age")
	case o.to.HTTP == "" && o.to.GRPC == "":
		return cli.Usagef("--listen and --grpc-listen are empty: there is nothing to serve")
	case o.maxAge < 0 || o.patience <= 0 || l.Timeout <= 0:
		return cli.Usagef("--max-age, --patience and --timeout: want more than 0")
	case l.Examples < 1 || l.Bytes < 1 || l.Bytes > 1<<30 || l.Queue < l.Examples:
		return cli.Usagef("--max-examples %d, --max-bytes %d, --queue %d: want at least 1, at most 1 GiB, and no "+
			"less than --max-examples", l.Examples, l.Bytes, l.Queue)
	}
	return nil
}

// weightsSource is a model that can be served.
type weightsSource struct {
	model  *serving.Model
	schema *data.Schema
	rows   serving.Rows
	maxAge time.Duration
	copies func() server.Copies // nil: there are none
	close  func() error
}

// open opens the model of a job, with its weights in t.
func (w *weightsSource) open(ctx context.Context, cfg trainer.Config, t tables.Tables) error {
	m, err := trainer.OpenModel(ctx, cfg, t)
	if err != nil {
		return err
	}
	w.schema = m.Config().Data.Described
	w.model, err = m.Served()
	return err
}

// openExport opens the model of --from.
func (o *serveOptions) openExport(ctx context.Context) (*weightsSource, error) {
	m, err := exported.Open(ctx, o.from)
	if err != nil {
		return nil, err
	}
	w := &weightsSource{rows: serving.Still(m), close: func() error { return nil }}
	return w, w.open(ctx, m.Config(), m)
}

// servedCache is the memory for copies of rows of a job without cache.bytes.
const servedCache = "64MiB"

// openCluster opens the model of a job or a saved model, whose weights are in a cluster.
func (o *serveOptions) openCluster(ctx context.Context, path string) (_ *weightsSource, err error) {
	cfg, err := trainer.LoadServed(path)
	if err != nil {
		return nil, err
	}
	over(len(o.endpoints) > 0, &cfg.Endpoints, o.endpoints)
	if len(cfg.Endpoints) == 0 {
		return nil, cli.DevHint(cli.Usagef("no cluster: give --endpoints host:port"))
	}
	cfg.Patience = o.patience
	if o.maxAge != 0 {
		cfg.Reads = tables.ReadConfig{Mode: "bounded", MaxAge: o.maxAge, MaxLag: cfg.Reads.MaxLag}
	}
	reads, maxAge := serving.Reads(cfg.Reads)
	if cfg.Cache.Bytes == "" && maxAge > 0 {
		cfg.Cache.Bytes = servedCache
	}
	c, err := o.dial(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	cfg.Cache = copies.Config{} // its limit is that of training
	t := tables.OpenCluster(c)
	t.SetReads(reads)
	w := &weightsSource{rows: t, maxAge: maxAge, close: c.Close}
	if err = w.open(ctx, cfg, t); err != nil {
		return nil, err
	}
	if maxAge > 0 {
		w.copies = func() server.Copies {
			n := c.Copies()
			return server.Copies{Rows: n.Hits, Age: time.Duration(n.Age), Evicted: n.Evicted}
		}
	}
	return w, nil
}

// drain is how long serve waits at its end for requests that have begun.
const drain = 20 * time.Second

// serve serves until ctx ends.
func (o *serveOptions) serve(ctx context.Context, open func(context.Context) (*weightsSource, error),
	out io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	from, err := open(ctx)
	if err != nil {
		return err
	}
	defer from.close()
	to := o.to
	to.TLS, to.Schema, to.Copies = o.tls, from.schema, from.copies
	to.Log = slog.New(slog.NewTextHandler(o.notes, nil))
	for i := range from.model.Fields.Tables {
		to.Tables = append(to.Tables, from.model.Fields.Tables[i].Name)
	}
	to.NewScorer = func(so serving.Options) (*serving.Scorer, error) {
		so.MaxAge = from.maxAge
		first, cancel := context.WithTimeout(ctx, o.patience)
		defer cancel()
		return serving.New(first, *from.model, from.rows, so)
	}
	running, err := server.Start(to)
	if err != nil {
		return err
	}
	http, grpc := running.Addrs()
	if http != nil {
		fmt.Fprintf(out, "HTTP on %s\n", http)
	}
	if grpc != nil {
		fmt.Fprintf(out, "gRPC on %s\n", grpc)
	}
	<-ctx.Done()
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	running.Stop(rest)
	return nil
}
