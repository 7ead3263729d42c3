package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/internal/rpc"
)

// globals are the flags every command has.
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

// commands lists what `rowraft` can do; each file adds its own.
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
	newBenchCmd,
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
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := checkFormat(g.output); err != nil {
				return err
			}
			return g.useCerts(cmd)
		},
	}
	f := root.PersistentFlags()
	f.StringSliceVar(&g.endpoints, "endpoints", []string{defaultEndpoint}, "servers to ask, host:port, comma-separated; one that is up is enough")
	f.StringVarP(&g.output, "output", "o", formatTable, "table, wide, json or yaml; the field names of json and yaml are stable")
	f.DurationVar(&g.timeout, "timeout", defaultTimeout, "give up after this time, with exit code 4")
	f.StringVar(&g.tls.Cert, "cert", "", "certificate of this side, a PEM file")
	f.StringVar(&g.tls.Key, "key", "", "private key of the certificate, a PEM file")
	f.StringVar(&g.tls.CA, "cacert", "", "certificate of the CA that signed the other side's, a PEM file")
	f.StringVar(&g.certs, "certs", "", "directory with ca.pem and node.pem or client.pem and their keys, as `rowraft cert lab` makes it; instead of the three above")
	f.BoolVar(&g.insecure, "insecure", false, "plaintext instead of TLS; a server then serves loopback addresses only")
	root.SetFlagErrorFunc(flagError)
	for _, newCmd := range commands {
		root.AddCommand(newCmd(g))
	}
	makeGroup(root)
	completeNames(g, root)
	return root
}

// makeGroup makes cmd, and those below that only hold others, refuse what is not
// the name of a command, and name the nearest.
func makeGroup(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.HasSubCommands() && sub.RunE == nil {
			makeGroup(sub)
		}
	}
	if cmd.Example == "" {
		cmd.Example = examplesBelow(cmd)
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		var names []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return usagef("unknown command %q for %q%s; `%s --help` lists the commands", args[0], cmd.CommandPath(), didYouMean("", args[0], names), cmd.CommandPath())
	}
}

// examplesBelow is the first example of each command that cmd holds.
func examplesBelow(cmd *cobra.Command) string {
	var lines []string
	for _, sub := range cmd.Commands() {
		for line := range strings.Lines(sub.Example) {
			if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(strings.TrimSpace(line), cmd.CommandPath()) && !strings.HasSuffix(line, "\\") {
				lines = append(lines, line)
				break
			}
		}
	}
	return strings.Join(lines, "\n")
}

// flagError adds the nearest flag to pflag's own message.
func flagError(cmd *cobra.Command, err error) error {
	suggestion := ""
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		suggestion = didYouMean("--", name, names)
	}
	return usagef("%w%s; `%s --help` lists the flags", err, suggestion, cmd.CommandPath())
}

// didYouMean returns a remark that names the nearest of names, or "".
func didYouMean(prefix, got string, names []string) string {
	best, bestDistance := "", max(len(got)/3, 1)+1
	for _, n := range names {
		if d := editDistance(got, n); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", prefix+best)
}

// editDistance counts the bytes to insert, delete, change or swap with the next
// that turn a into b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// withTimeout is the context of one short command.
func (g *globals) withTimeout(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), g.timeout)
}

// noArgs and oneArg check positional arguments as usage errors.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s: unexpected argument %q", cmd.CommandPath(), args[0])
	}
	return nil
}

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("%s: want one argument, %s; got %d", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}
