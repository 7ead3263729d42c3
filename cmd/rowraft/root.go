package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
)

// globals are the flags of every command.
type globals struct {
	endpoints []string
	output    string
	timeout   time.Duration
	tls       rpc.TLSFiles
	insecure  bool
	certs     string // directory of a lab's certificates
}

const (
	defaultEndpoint = "127.0.0.1:7070"
	defaultTimeout  = 30 * time.Second
)

// commands is the list of commands; each file adds its own.
var commands = []func(*globals) *cobra.Command{
	newServerCmd,
	newSchedulerCmd,
	newStartCmd,
	newClusterCmd,
	newNodeCmd,
	newTableCmd,
	newRowCmd,
	newShardCmd,
	newOperationCmd,
	newLogCmd,
	newCheckpointCmd,
	newJobCmd,
	newCertCmd,
	newTokenCmd,
	newDemoCmd,
	newDebugCmd,
	newVersionCmd,
	newCompletionCmd,
}

func newRoot(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "rowraft",
		Short: "Embedding tables of recommender models, replicated by Raft",
		Long: `rowraft keeps the embedding tables of recommender models on a cluster of servers,
replicated by Raft, and trains them from many workers at once.

Every flag can also be given as an environment variable: --endpoints is ROWRAFT_ENDPOINTS,
--log-level is ROWRAFT_LOG_LEVEL. A flag wins over the environment.

Exit codes, of every command:
    0  done
    1  failed
    2  wrong command line or configuration
    3  a verdict: it ran, and found something wrong (an unhealthy cluster, files that do not verify, replicas that differ)
    4  nobody answers, there is no leader, or --timeout has passed; trying again may help
    5  refused, because of what could be lost; the message names the flag that insists
    6  of a server: its data is damaged, or newer than this binary; a restart would find the same
  130  interrupted; what runs in the cluster goes on`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.FromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := cli.CheckFormat(g.output); err != nil {
				return err
			}
			return g.useCerts(cmd)
		},
	}
	f := root.PersistentFlags()
	f.StringSliceVar(&g.endpoints, "endpoints", []string{defaultEndpoint}, "servers to ask, host:port, comma-separated; one that is up is enough")
	f.StringVarP(&g.output, "output", "o", cli.FormatTable, "table, wide, json or yaml; the field names of json and yaml are stable")
	f.DurationVar(&g.timeout, "timeout", defaultTimeout, "give up after this time, with exit code 4")
	f.StringVar(&g.tls.Cert, "cert", "", "certificate of this side, a PEM file")
	f.StringVar(&g.tls.Key, "key", "", "private key of the certificate, a PEM file")
	f.StringVar(&g.tls.CA, "cacert", "", "certificate of the CA that signed the other side's, a PEM file")
	f.StringVar(&g.certs, "certs", "", "directory with ca.pem and node.pem or client.pem and their keys, as `rowraft cert lab` makes it; instead of the three above")
	f.BoolVar(&g.insecure, "insecure", false, "plaintext instead of TLS; a server then serves loopback addresses only")
	root.SetFlagErrorFunc(cli.FlagError)
	for _, newCmd := range commands {
		root.AddCommand(newCmd(g))
	}
	cli.MakeGroup(root)
	completeNames(g, root)
	return root
}

// withTimeout returns the context of one short command.
func (g *globals) withTimeout(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), g.timeout)
}
