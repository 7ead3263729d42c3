package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletionCmd(*remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Write a script that completes commands, flags and names of the cluster in a shell",
		Long: `Write a script that completes commands, flags and names of the cluster in a shell.

Names of tables, servers, shards, jobs and operations are those of the cluster that --endpoints, or ROWRAFT_ENDPOINTS and
the other variables, name; where it does not answer at once there are none.`,
		Example: `  source <(rowraft completion bash)
  rowraft completion zsh > "${fpath[1]}/_rowraft"
  rowraft completion fish > ~/.config/fish/completions/rowraft.fish`,
		Args:      cli.OneArg("the shell: bash, zsh, fish or powershell"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(w, true)
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(w)
			}
			return cli.Usagef("shell %q: want bash, zsh, fish or powershell%s", args[0], cli.DidYouMean("", args[0], shells))
		},
	}
}

// namer returns the names in a status that can be completed.
type namer func(*rowraftv1.StatusReply) []string

func shardNames(r *rowraftv1.StatusReply) (out []string) {
	leaders := rpc.Leaders(r)
	for _, s := range r.GetMap().GetShards() {
		leader := view.NodeName(r.GetMap(), leaders[s.GetId()].Node)
		out = append(out, fmt.Sprintf("%d\tled by %s", s.GetId(), view.Dash(leader)))
	}
	return out
}

func nodeNames(r *rowraftv1.StatusReply) (out []string) {
	for _, n := range r.GetNodes() {
		out = append(out, view.NameOr(n.GetNode().GetName(), n.GetNode().GetId())+"\t"+n.GetState())
	}
	return out
}

func tableNames(r *rowraftv1.StatusReply) (out []string) {
	for _, t := range r.GetMap().GetTables() {
		out = append(out, t.GetName())
	}
	return out
}

func jobNames(r *rowraftv1.StatusReply) (out []string) {
	for _, j := range r.GetJobs() {
		out = append(out, j.GetJob())
	}
	return out
}

func operationNames(r *rowraftv1.StatusReply) (out []string) {
	for _, o := range view.NewOperationList(r, false).Operations {
		out = append(out, o.ID+"\t"+o.Kind+" "+o.Server)
	}
	return out
}

// argNames maps the path of a command to the names for its first argument.
var argNames = map[string]namer{
	"shard describe": shardNames, "shard digest": shardNames, "shard transfer-leader": shardNames,
	"shard move": shardNames, "shard cancel-move": shardNames,
	"server status": nodeNames, "server drain": nodeNames, "server undrain": nodeNames, "server decommission": nodeNames,
	"server recommission": nodeNames,
	"table describe":      tableNames, "table delete": tableNames, "table export": tableNames, "table import": tableNames,
	"table shrink": tableNames, "table forecast": tableNames,
	"row get": tableNames, "row set": tableNames, "row delete": tableNames,
	"job describe": jobNames, "job watch": jobNames, "job stop": jobNames,
	"operation watch": operationNames, "operation cancel": operationNames,
}

// flagValues maps flags to the names for their values.
var flagValues = []struct {
	path, flag string
	names      namer
}{
	{"shard list", "table", tableNames}, {"shard move", "from", nodeNames}, {"shard move", "to", nodeNames},
	{"shard transfer-leader", "to", nodeNames}, {"hot keys", "table", tableNames}, {"hot shards", "table", tableNames},
}

// completeNames adds completion of the cluster's names to the commands under root. It panics if one of them does not
// exist.
func completeNames(g *remote.Flags, root *cobra.Command) {
	for path, names := range argNames {
		cmd := commandAt(root, path)
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && cmd.Name() != "digest" { // digest takes any number of arguments
				return nil, cobra.ShellCompDirectiveDefault
			}
			return askNames(g, cmd, names), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, f := range flagValues {
		complete(commandAt(root, f.path), f.flag, func(cmd *cobra.Command, _ []string, _ string) ([]string,
			cobra.ShellCompDirective) {
			return askNames(g, cmd, f.names), cobra.ShellCompDirectiveNoFileComp
		})
	}
	complete(root, "output", cobra.FixedCompletions([]string{cli.FormatTable, cli.FormatWide, cli.FormatJSON,
		cli.FormatYAML}, cobra.ShellCompDirectiveNoFileComp))
}

func commandAt(root *cobra.Command, path string) *cobra.Command {
	cmd, _, err := root.Find(strings.Fields(path))
	if err != nil || cmd.CommandPath() != root.Name()+" "+path {
		panic(fmt.Sprintf("there is no command %q: %v", path, err))
	}
	return cmd
}

func complete(cmd *cobra.Command, flag string, fn cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, fn); err != nil {
		panic(err)
	}
}

// askNames asks the cluster of the flags and the environment for names. It returns none if the cluster does not answer
// quickly.
func askNames(g *remote.Flags, cmd *cobra.Command, of namer) []string {
	if err := cli.FromEnvironment(cmd, false); err != nil {
		return nil
	}
	if g.TLS.IsZero() {
		if err := g.UseCerts(cmd); err != nil {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Root().Context(), g.CompletionLimit)
	defer cancel()
	reply, err := g.Status(ctx)
	if err != nil {
		return nil
	}
	return of(reply)
}
