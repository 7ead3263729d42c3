package server

import (
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

// NewSchedulerCmd returns the command `rowraft scheduler`.
func NewSchedulerCmd(g *remote.Flags) *cobra.Command {
	f := serverFlags{schedulerOnly: true}
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Run the scheduler as a process of its own",
		Long: `Run the scheduler in a process that holds no shards: the authority on servers, the shard map, tables and
jobs. Its servers are started with --scheduler. One process is enough to try it; three, each with the same
--join, continue without any one of them. Training continues while the scheduler is down.

It stops cleanly on SIGTERM or SIGINT, and continues from its data directory when it is started again.`,
		Example: `  # one scheduler, which makes the shards once three servers are there
  rowraft scheduler --data-dir /var/lib/rowraft-scheduler --servers 3 --listen 10.0.0.9:7070 --peer-listen 10.0.0.9:7071 \
    --cert server.pem --key server.key --cacert ca.pem

  # on this machine, to try it
  rowraft scheduler --data-dir ./scheduler --servers 1 --insecure`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.command(cmd, g) },
	}
	fl := cmd.Flags()
	f.processFlags(fl)
	fl.StringSliceVar(&f.join, "join", nil,
		"gRPC addresses of the three processes of the scheduler, this one included; none: it is one process")
	fl.IntVar(&f.servers, "servers", 0,
		"servers that the cluster starts with: the shards are made once so many are there (required)")
	return cmd
}

// checkScheduler refuses, for `rowraft scheduler`, a --join that names another number of processes than 1 or 3, and a
// start without the number of servers.
func (f *serverFlags) checkScheduler() error {
	switch n := len(f.join); {
	case !f.schedulerOnly:
	case n != 0 && n != 1 && n != 3:
		return cli.Usagef("--join names %d processes of the scheduler: want 1 or 3, since more than half of them must be up",
			n)
	case f.servers < 1:
		return cli.Usagef("--servers %d: say how many servers the cluster starts with", f.servers)
	}
	return nil
}
