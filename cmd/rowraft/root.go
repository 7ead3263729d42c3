package main

import (
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/cert"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/checkpoint"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/cluster"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/debug"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/demo"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/dev"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/hot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/job"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/logs"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/node"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/server"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/shard"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/table"
	"github.com/rowraft/rowraft/internal/cli"
)

func newRoot(g *remote.Flags) *cobra.Command {
	build := buildVersion()
	root := &cobra.Command{
		Use:   "rowraft",
		Short: "Embedding tables of recommender models, replicated by Raft",
		Long: `rowraft keeps the embedding tables of recommender models on a cluster of servers,
replicated by Raft, and trains them from many workers at once.

The global flags, and all flags of server, scheduler and start, can also be given as environment
variables: --endpoints is ROWRAFT_ENDPOINTS, --log-level is ROWRAFT_LOG_LEVEL. A flag wins over every
variable that conflicts with it. No variable sets the flags of other commands, such as --yes or
--replace, and demo and dev use no variables.

Exit codes, of every command:
    0  done
    1  failed
    2  wrong command line or configuration
    3  a verdict: it ran, and found something wrong (an unhealthy cluster, files that do not verify, replicas that differ)
    4  no server answers, there is no leader, or --timeout has passed; trying again may help
    5  refused, because of what could be lost; the message names the flag that insists
    6  of a server: its data is damaged, newer than this binary or of another cluster, or its certificates are of
       another CA; a restart would end the same way
  130  interrupted; work in the cluster continues`,
		Version: build.String(),
		Annotations: map[string]string{
			cli.Instead + "ls":     "`rowraft table list`, `rowraft server list`, `rowraft shard list` or `rowraft job list`",
			cli.Instead + "status": "`rowraft cluster status`",
			cli.Instead + "health": "`rowraft cluster status`, which ends with 0 if all is well; of one server: /readyz " +
				"of its --ops-listen",
			cli.Instead + "node":    "`rowraft server`, as in `rowraft server list`",
			cli.Instead + "nodes":   "`rowraft server list`",
			cli.Instead + "member":  "`rowraft server list`",
			cli.Instead + "members": "`rowraft server list`",
			cli.Instead + "servers": "`rowraft server list`",
			cli.Instead + "list":    "`rowraft table list`, `rowraft server list`, `rowraft shard list` or `rowraft job list`",
			cli.Instead + "train":   "`rowraft-trainer train`, another binary",
			cli.Instead + "bench":   "`rowraft-bench`, another binary",
			cli.Instead + "chaos":   "`rowraft-chaos`, another binary",
			cli.Instead + "restore": "`rowraft checkpoint restore`",
			cli.Instead + "backup":  "`rowraft checkpoint create`, or `rowraft checkpoint policy set`",
			cli.Instead + "logs":    "`rowraft debug zip`; of the Raft logs on a disk: `rowraft log`",
		},
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if !remote.StartsItsOwn(cmd) {
				if err := cli.FromEnvironment(cmd, remote.Serves(cmd)); err != nil {
					return err
				}
			}
			if err := cli.CheckFormat(g.Output); err != nil {
				return err
			}
			return g.UseCerts(cmd)
		},
	}
	f := root.PersistentFlags()
	f.StringSliceVar(&g.Endpoints, "endpoints", []string{remote.DefaultEndpoint},
		"servers to ask, host:port, comma-separated; one that is up is enough")
	f.StringVarP(&g.Output, "output", "o", cli.FormatTable,
		"table, wide, json or yaml; the field names of json and yaml are stable")
	f.DurationVar(&g.Timeout, "timeout", remote.DefaultTimeout, "give up after this time, with exit code 4")
	f.StringVar(&g.TLS.Cert, "cert", "", "certificate of this side, a PEM file")
	f.StringVar(&g.TLS.Key, "key", "", "private key of the certificate, a PEM file")
	f.StringVar(&g.TLS.CA, "cacert", "", "certificate of the CA that signed the other side's, a PEM file")
	f.StringVar(&g.Certs, "certs", "", "directory with ca.pem and server.pem or client.pem and their keys, as 'rowraft "+
		"cert lab' makes it; instead of the three above")
	f.BoolVar(&g.Insecure, "insecure", false, "plaintext instead of TLS; a server then serves loopback addresses only")
	cli.ExclusiveSecurity(f)
	root.SetFlagErrorFunc(cli.FlagError)
	serverCmd := server.NewServerCmd(g)
	serverCmd.AddCommand(node.NewCmds(g)...)
	root.AddCommand(
		serverCmd,
		server.NewSchedulerCmd(g),
		server.NewStartCmd(g),
		cluster.NewCmd(g),
		table.NewCmd(g),
		table.NewRowCmd(g),
		shard.NewCmd(g),
		hot.NewCmd(g),
		node.NewOperationCmd(g),
		logs.NewCmd(g),
		checkpoint.NewCmd(g),
		job.NewCmd(g),
		cert.NewCmd(g),
		cert.NewTokenCmd(g),
		dev.NewCmd(),
		demo.NewCmd(g),
		debug.NewCmd(g),
		newVersionCmd(g),
		newCompletionCmd(g),
	)
	cli.MakeGroup(root)
	completeNames(g, root)
	return root
}
