package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft-trainer/server"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/copies"
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
		Use: "serve JOB.yaml", Short: "Answer requests for predictions over HTTP and gRPC",
		Long: `Serve computes predictions of a trained model for the examples of requests, over HTTP (POST /v1/score, JSON or lines
of the data's format) and gRPC (rowraft.serving.v1.Scoring). JOB.yaml is the file of a job, or of train --save-model.
The weights are those that the cluster has now: no older than reads.max_age of the job (--max-age), 10 s by default.
Nothing is written: a certificate of the role reader is enough, and an unknown id has its initial weights.

SIGINT and SIGTERM end it after the requests that have begun.`,
		Example: "  rowraft-trainer serve ctr.model --endpoints 127.0.0.1:7070 --insecure\n" +
			"  rowraft-trainer serve job.yaml --endpoints 10.0.0.1:7070 --certs certs --listen 10.0.0.9:7500",
		Args: cli.OneArg("the file of a job or a model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.notes = cmd.ErrOrStderr()
			return o.serve(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.endpoints, "endpoints", nil, "host:port of one or more servers; the others are found")
	o.securityFlags(f)
	f.StringVar(&o.to.HTTP, "listen", "127.0.0.1:7500", "host:port of HTTP; empty: none")
	f.StringVar(&o.to.GRPC, "grpc-listen", "127.0.0.1:7501", "host:port of gRPC; empty: none")
	f.DurationVar(&o.maxAge, "max-age", 0, "how old weights may be; default reads.max_age of the job, or 10s")
	f.DurationVar(&o.patience, "patience", 2*time.Minute, "how long to wait for the cluster at the start")
	l := &o.to.Limits
	f.DurationVar(&l.Timeout, "timeout", 5*time.Second, "how long a request may take that states no shorter time")
	f.IntVar(&l.Examples, "max-examples", 4096, "examples of a request")
	f.Int64Var(&l.Bytes, "max-bytes", 4<<20, "bytes of a request")
	f.IntVar(&l.Queue, "queue", 16384, "examples that may wait; further requests are refused")
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

// load returns the job.
func (o *serveOptions) load(path string) (trainer.Config, error) {
	cfg, err := trainer.LoadServed(path)
	if err != nil {
		return cfg, err
	}
	over(len(o.endpoints) > 0, &cfg.Endpoints, o.endpoints)
	cfg.Patience = o.patience
	if o.maxAge != 0 {
		cfg.Reads = tables.ReadConfig{Mode: "bounded", MaxAge: o.maxAge, MaxLag: cfg.Reads.MaxLag}
	}
	l := &o.to.Limits
	switch {
	case len(cfg.Endpoints) == 0:
		return cfg, cli.DevHint(cli.Usagef("no cluster: give --endpoints host:port"))
	case o.insecure != o.tls.IsZero():
		return cfg, cli.DevHint(
			cli.Usagef("give either --cert, --key and --cacert, or --insecure for plaintext on loopback"))
	case o.to.HTTP == "" && o.to.GRPC == "":
		return cfg, cli.Usagef("--listen and --grpc-listen are empty: there is nothing to serve")
	case o.maxAge < 0 || o.patience <= 0 || l.Timeout <= 0:
		return cfg, cli.Usagef("--max-age, --patience and --timeout: want more than 0")
	case l.Examples < 1 || l.Bytes < 1 || l.Bytes > 1<<30 || l.Queue < l.Examples:
		return cfg, cli.Usagef("--max-examples %d, --max-bytes %d, --queue %d: want at least 1, at most 1 GiB, and no "+
			"less than --max-examples", l.Examples, l.Bytes, l.Queue)
	}
	return cfg, nil
}

// servedCache is the memory for copies of rows of a job without cache.bytes.
const servedCache = "64MiB"

// drain is how long serve waits at its end for requests that have begun.
const drain = 20 * time.Second

// serve serves until ctx ends.
func (o *serveOptions) serve(ctx context.Context, path string, out io.Writer) error {
	cfg, err := o.load(path)
	if err != nil {
		return err
	}
	reads, maxAge := serving.Reads(cfg.Reads)
	if cfg.Cache.Bytes == "" && maxAge > 0 {
		cfg.Cache.Bytes = servedCache
	}
	c, err := o.dial(ctx, &cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	cfg.Cache = copies.Config{} // it is that of the client, and its limit is not that of training
	t := tables.OpenCluster(c)
	t.SetReads(reads)
	model, err := trainer.Served(ctx, &cfg, t)
	if err != nil {
		return err
	}
	s := o.to
	s.TLS, s.Schema, s.Log = o.tls, cfg.Data.Described, slog.New(slog.NewTextHandler(os.Stderr, nil))
	for i := range model.Fields.Tables {
		s.Tables = append(s.Tables, model.Fields.Tables[i].Name)
	}
	if maxAge > 0 {
		s.Copies = func() server.Copies {
			n := c.Copies()
			return server.Copies{Rows: n.Hits, Age: time.Duration(n.Age), Evicted: n.Evicted}
		}
	}
	s.NewScorer = func(so serving.Options) (*serving.Scorer, error) {
		so.MaxAge = maxAge
		first, cancel := context.WithTimeout(ctx, cfg.Patience)
		defer cancel()
		return serving.New(first, *model, t, so)
	}
	running, err := server.Start(s)
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
