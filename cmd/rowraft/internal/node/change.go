package node

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// nodeChange is a command that changes the intent of a server.
type nodeChange struct {
	use, short, long string
	expect, intent   rowraftv1.NodeIntent
	anyway           bool // from any intent
}

var nodeChanges = []nodeChange{
	{
		use: "drain", short: "Hand over all leads of a server, and give it no new ones, before it is stopped",
		long: `Hand over all leads of a server, and give it no new ones and no replicas, until it is undrained. Its replicas stay and
vote: drain a server before its machine is worked on. It is refused when a shard would have no majority without the server.`,
		intent: rowraftv1.NodeIntent_NODE_INTENT_DRAIN, anyway: false,
	},
	{
		use: "undrain", short: "Let a drained server lead and take replicas again",
		long:   "Let a drained server lead and take replicas again.",
		expect: rowraftv1.NodeIntent_NODE_INTENT_DRAIN,
	},
	{
		use: "decommission", short: "Move everything away from a server, for good",
		long: `Move all replicas of a server to others, one after the other, while pushes and pulls continue. When it is empty its process
can be stopped; it is forgotten then, and its data directory is refused from then on. Until it has ended it can be taken back with
` + "`rowraft server recommission`" + `. A server that is down is replaced at once.`,
		intent: rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION, anyway: true,
	},
	{
		use: "recommission", short: "Take a decommissioned server back",
		long: "Take a server back that is being decommissioned, or is and still runs. It gets replicas again as the " +
			"servers are evened out.",
		expect: rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION,
	},
}

// changeFlags are the flags of all these commands.
type changeFlags struct {
	yes, dryRun, detach, force bool
	confirm                    string
}

func newNodeChangeCmd(g *remote.Flags, c nodeChange) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   c.use + " SERVER",
		Short: c.short,
		Long:  c.long,
		Example: fmt.Sprintf(`  rowraft server %[1]s n2 --dry-run
  rowraft server %[1]s n2 --yes`, c.use),
		Args: cli.OneArg("the SERVER, a name or id from `rowraft server list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := changeNode(g, cmd, c, args[0], f); err != nil {
				return fmt.Errorf("server %s: %w", c.use, err)
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.yes, "yes", false, "do not ask")
	fl.BoolVar(&f.dryRun, "dry-run", false, "only say what would be done, and what could be lost")
	fl.BoolVar(&f.detach, "detach", false, "return at once; 'rowraft operation watch' follows it")
	if c.intent != rowraftv1.NodeIntent_NODE_INTENT_UNSPECIFIED {
		fl.BoolVar(&f.force, "force", false, "even if a shard may lose its majority; the name must be typed, too")
		fl.StringVar(&f.confirm, "confirm", "", "with --force: the name of the server, instead of typing it")
	}
	return cmd
}

// changedJSON is the contract of these commands with -o json.
type changedJSON struct {
	Schema    string          `json:"schema"`
	Server    string          `json:"server"`
	ServerID  string          `json:"server_id"`
	Intent    string          `json:"intent"`
	Changed   bool            `json:"changed"`
	Plan      []string        `json:"plan"`
	Risks     []string        `json:"risks"`
	Operation *view.Operation `json:"operation"` // null: there is nothing to do
}

func newChangedJSON(r *rowraftv1.ChangeNodeReply, changed bool) *changedJSON {
	v := &changedJSON{
		Schema: cli.JSONSchema,
		Server: view.NameOr(r.GetNode().GetName(), r.GetNode().GetId()), ServerID: r.GetNode().GetId(),
		Intent:  view.Intent(r.GetNode().GetIntent()),
		Changed: changed, Plan: append([]string{}, r.GetPlan()...), Risks: append([]string{}, r.GetRisks()...),
	}
	if r.GetOperation() != nil {
		o := view.NewOperation(r.GetOperation())
		v.Operation = &o
	}
	return v
}

func (v *changedJSON) print(w io.Writer, _ bool) error {
	for _, p := range v.Plan {
		fmt.Fprintln(w, p)
	}
	for _, r := range v.Risks {
		fmt.Fprintln(w, "RISK: "+r)
	}
	return nil
}

func changeNode(g *remote.Flags, cmd *cobra.Command, c nodeChange, name string, f changeFlags) error {
	req := &rowraftv1.ChangeNodeRequest{Node: name, Intent: c.intent, Expect: c.expect, ExpectAny: c.anyway, DryRun: true,
		Force: f.force}
	plan, err := callChange(g, cmd, req)
	if err != nil {
		return err
	}
	v := newChangedJSON(plan, false)
	if len(v.Risks) > 0 && !f.force && !f.dryRun {
		err := cli.Refused(errors.New(strings.Join(v.Risks, " ")))
		return cli.Hint(err, "nothing was changed; --force does it all the same")
	}
	if f.dryRun {
		if err := cli.Show(cmd.OutOrStdout(), g.Output, v, v.print); err != nil || plan.GetAccepted() {
			return err
		}
		return cli.Refused(errors.New("it would be refused because of the risks"))
	}
	changes := plan.GetNode().GetIntent() != c.intent
	if changes {
		if err := f.agreed(cmd, v); err != nil {
			return err
		}
	}
	// Change the node of the plan, by its id. The server refuses if the node's intent is not the expected one.
	req.DryRun, req.Node = false, v.ServerID
	done, err := callChange(g, cmd, req)
	if err != nil {
		return err
	}
	v = newChangedJSON(done, changes)
	if v.Operation == nil || f.detach {
		return cli.Show(cmd.OutOrStdout(), g.Output, v, v.tell)
	}
	if g.Output == cli.FormatTable || g.Output == cli.FormatWide {
		if err := v.tell(cmd.OutOrStdout(), false); err != nil {
			return err
		}
	}
	return watchOperation(g, cmd, done.GetOperation().GetId())
}

// tell prints the change.
func (v *changedJSON) tell(w io.Writer, wide bool) error {
	if err := v.print(w, wide); err != nil {
		return err
	}
	if v.Operation == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "Operation %s: %s %s.\n", v.Operation.ID, v.Operation.Kind, v.Server)
	return err
}

// callChange calls the scheduler. A repeated call does no harm.
func callChange(g *remote.Flags, cmd *cobra.Command,
	req *rowraftv1.ChangeNodeRequest) (*rowraftv1.ChangeNodeReply, error) {
	return remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewClusterClient,
		rowraftv1.ClusterClient.ChangeNode, req)
}

// agreed asks for confirmation. If data could be lost, the user must type the name of the server.
func (f *changeFlags) agreed(cmd *cobra.Command, v *changedJSON) error {
	if len(v.Risks) > 0 {
		if f.confirm == v.Server {
			return nil
		}
		if err := v.print(cmd.ErrOrStderr(), false); err != nil {
			return err
		}
		if f.confirm != "" {
			return cli.Refused(cli.Usagef("--confirm %q is not the name of the server, %s: nothing was changed", f.confirm,
				v.Server))
		}
		return terminal.ConfirmOrRefuse(cmd, fmt.Sprintf("Type %s to do it all the same: ", v.Server), v.Server,
			"--confirm "+v.Server)
	}
	if f.yes {
		return nil
	}
	if err := v.print(cmd.ErrOrStderr(), false); err != nil {
		return err
	}
	return terminal.ConfirmOrRefuse(cmd, "Type yes to do it: ", "yes", "--yes")
}
