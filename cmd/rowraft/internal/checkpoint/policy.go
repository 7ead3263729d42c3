package checkpoint

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newCheckpointPolicyCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Let the cluster make checkpoints by itself, and remove old ones",
		Long: `Let the cluster make checkpoints by itself, and remove old ones. The scheduler's leader runs policies, one
checkpoint at a time; what they have done outlives it. ` + "`rowraft cluster status`" + ` names those that fail.

` + destinationHelp,
	}
	cmd.AddCommand(newPolicySetCmd(g), newPolicyListCmd(g), newPolicyDescribeCmd(g), newPolicyRunCmd(g),
		newPolicyDeleteCmd(g))
	return cmd
}

// policyJSON is one policy in the JSON output of all commands.
type policyJSON struct {
	Name           string   `json:"name"`
	Destination    string   `json:"destination"`
	EverySeconds   float64  `json:"every_seconds"`
	Keep           uint32   `json:"keep"`
	KeepWithinSecs float64  `json:"keep_within_seconds"`
	Job            string   `json:"job"`
	SkipAbsent     bool     `json:"skip_absent"`
	FullEvery      uint32   `json:"full_every"`
	Verify         bool     `json:"verify"`
	Owner          string   `json:"owner"` // name of the trainer that set it; "": an admin or operator
	State          string   `json:"state"` // waiting, running, failing, idle
	Running        string   `json:"running"`
	LastRun        string   `json:"last_run"`     // start time; "": never
	LastSuccess    string   `json:"last_success"` // likewise
	Next           string   `json:"next"`         // "": when its job trains
	Failures       uint32   `json:"failures"`     // in a row
	Error          string   `json:"error"`
	RetentionError string   `json:"retention_error"`
	Checkpoints    []string `json:"checkpoints"` // made and not deleted, oldest first
}

func newPolicyJSON(st *rowraftv1.PolicyStatus) policyJSON {
	p, r := st.GetPolicy(), st.GetRecord()
	v := policyJSON{
		Name: p.GetName(), Destination: p.GetDestination(), EverySeconds: time.Duration(p.GetEveryNs()).Seconds(),
		Keep:           p.GetKeep(),
		KeepWithinSecs: time.Duration(p.GetKeepWithinNs()).Seconds(), Job: p.GetJob(), SkipAbsent: p.GetSkipAbsent(),
		FullEvery: max(p.GetFullEvery(), 1), Verify: p.GetVerify(), Owner: p.GetOwner(),
		State: st.GetState(), Running: r.GetRunning(), LastRun: view.Time(r.GetBegunNs()), Next: view.Time(st.GetNextNs()),
		Failures: r.GetFailures(), Error: r.GetError(), RetentionError: r.GetRetentionError(), Checkpoints: []string{},
	}
	for _, m := range r.GetMade() {
		v.Checkpoints = append(v.Checkpoints, m.GetName())
		v.LastSuccess = view.Time(m.GetBegunNs())
	}
	return v
}

// showPolicy prints what was done with a policy; as JSON, it also prints the policy.
func showPolicy(g *remote.Flags, cmd *cobra.Command, did string, st *rowraftv1.PolicyStatus) error {
	v := struct {
		Schema string     `json:"schema"`
		Policy policyJSON `json:"policy"`
	}{cli.JSONSchema, newPolicyJSON(st)}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		_, err := fmt.Fprintf(w, "checkpoint policy %s: %s\n", v.Policy.Name, did)
		return err
	})
}

// callPolicies calls the scheduler's leader within --timeout, with retries.
func callPolicies[Q, R any](g *remote.Flags, cmd *cobra.Command,
	method func(rowraftv1.CheckpointsClient, context.Context, *Q, ...grpc.CallOption) (*R, error), req *Q) (*R, error) {
	reply, err := remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewCheckpointsClient, method, req)
	return reply, namedPolicyError(cmd, err)
}

// namedPolicyError names the command in err, if there is one.
func namedPolicyError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("checkpoint policy %s: %w", cmd.Name(), err)
}

func newPolicySetCmd(g *remote.Flags) *cobra.Command {
	var p rowraftv1.CheckpointPolicy
	var every, keepWithin time.Duration
	cmd := &cobra.Command{
		Use:   "set NAME --to DESTINATION --every 10m --keep 5",
		Short: "Make a policy, or change it",
		Long: `Make a policy, or change it. Its first checkpoint comes after --every (` + "`run-now`" + ` makes one at once), a failed one is tried
again after 30 seconds, a minute, and so on up to --every.

After each success the policy removes, of the checkpoints that it made itself, those beyond the newest --keep that are older than
--keep-within. A checkpoint whose manifest cannot be read does not count as kept, and one that a delta depends on stays.

` + destinationHelp,
		Example: `  rowraft checkpoint policy set nightly --to s3://models/ctr --every 10m --keep 5 --keep-within 24h
  rowraft checkpoint policy set ctr --to /mnt/checkpoints --every 10m --keep 6 --job ctr --full-every 6`,
		Args: cli.OneArg("the NAME of the policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.Destination == "" || every <= 0 {
				return cli.Usagef("%s: give --to, where the checkpoints go, and --every", cmd.CommandPath())
			}
			if keepWithin < 0 {
				return cli.Usagef("--keep-within %v: want ≥ 0", keepWithin)
			}
			p.Name, p.EveryNs, p.KeepWithinNs = args[0], uint64(every), uint64(keepWithin)
			reply, err := callPolicies(g, cmd, rowraftv1.CheckpointsClient.SetPolicy, &rowraftv1.SetPolicyRequest{Policy: &p})
			if err != nil {
				return err
			}
			next := "as soon as its job trains"
			if at := view.Time(reply.GetPolicy().GetNextNs()); at != "" {
				next = "at " + at
			}
			return showPolicy(g, cmd, fmt.Sprintf("every %v to %s; the next checkpoint comes %s", every,
				reply.GetPolicy().GetPolicy().GetDestination(), next), reply.GetPolicy())
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Destination, "to", "", "destination of the checkpoints")
	f.DurationVar(&every, "every", 0, "time from one to the next")
	f.Uint32Var(&p.Keep, "keep", 5, "checkpoints to keep, at least 1")
	f.DurationVar(&keepWithin, "keep-within", 0, "keep younger ones, too")
	f.StringVar(&p.Job, "job", "", "only while this job trains, and with all its trainers")
	f.BoolVar(&p.SkipAbsent, "skip-absent", false,
		"continue without trainers that do not answer; their job cannot resume exactly from the checkpoint")
	f.BoolVar(&p.Verify, "verify", false, "read every byte of the checkpoints that stay, once each, before one is removed")
	f.Uint32Var(&p.FullEvery, "full-every", 1,
		"every so many checkpoints one is full, the others are deltas; 1: all are full")
	return cmd
}

func newPolicyListCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the policies, and how they do",
		Example: "  rowraft checkpoint policy list -o wide",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := callPolicies(g, cmd, rowraftv1.CheckpointsClient.ListPolicies, &rowraftv1.ListPoliciesRequest{})
			if err != nil {
				return err
			}
			v := struct {
				Schema   string       `json:"schema"`
				Policies []policyJSON `json:"policies"`
			}{cli.JSONSchema, []policyJSON{}}
			for _, st := range reply.GetPolicies() {
				v.Policies = append(v.Policies, newPolicyJSON(st))
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
				header := []string{"POLICY", "EVERY", "KEEP", "KEPT", "LAST SUCCESS", "NEXT", "STATE"}
				if wide {
					header = append(header, "DESTINATION", "JOB", "OWNER", "ERROR")
				}
				t := cli.NewTable(w, wide, header, "EVERY", "KEEP", "KEPT").OnlyWide("KEEP", "KEPT")
				for _, p := range v.Policies {
					row := table.Row{p.Name, time.Duration(p.EverySeconds * 1e9), p.Keep, len(p.Checkpoints), view.Dash(p.LastSuccess),
						view.Dash(p.Next), p.State}
					if wide {
						row = append(row, p.Destination, p.Job, p.Owner, p.Error)
					}
					t.AppendRow(row)
				}
				t.Render()
				return nil
			})
		},
	}
}

func newPolicyDescribeCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "describe NAME",
		Short:   "Tell all about a policy",
		Example: "  rowraft checkpoint policy describe nightly",
		Args:    cli.OneArg("the NAME of the policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := callPolicies(g, cmd, rowraftv1.CheckpointsClient.ListPolicies, &rowraftv1.ListPoliciesRequest{})
			if err != nil {
				return err
			}
			for _, st := range reply.GetPolicies() {
				if st.GetPolicy().GetName() == args[0] {
					return describePolicy(g, cmd, newPolicyJSON(st))
				}
			}
			return cli.Usagef("there is no checkpoint policy %q; `rowraft checkpoint policy list` lists them", args[0])
		},
	}
}

func describePolicy(g *remote.Flags, cmd *cobra.Command, p policyJSON) error {
	v := struct {
		Schema string     `json:"schema"`
		Policy policyJSON `json:"policy"`
	}{cli.JSONSchema, p}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		t := cli.NewTable(w, wide, []string{"POLICY", p.Name})
		for _, row := range []table.Row{
			{"DESTINATION", p.Destination}, {"EVERY", time.Duration(p.EverySeconds * 1e9)}, {"KEEP", p.Keep},
			{"KEEP WITHIN", time.Duration(p.KeepWithinSecs * 1e9)},
			{"JOB", p.Job}, {"OWNER", p.Owner}, {"SKIP ABSENT", p.SkipAbsent}, {"FULL EVERY", p.FullEvery}, {"VERIFY", p.Verify},
			{"STATE", p.State}, {"LAST RUN", p.LastRun}, {"LAST SUCCESS", p.LastSuccess},
			{"NEXT", p.Next}, {"FAILURES", p.Failures}, {"ERROR", p.Error}, {"RETENTION ERROR", p.RetentionError},
		} {
			t.AppendRow(row)
		}
		for _, name := range p.Checkpoints {
			t.AppendRow(table.Row{"CHECKPOINT", name})
		}
		t.Render()
		return nil
	})
}

func newPolicyRunCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "run-now NAME",
		Short: "Make the next checkpoint of a policy now",
		Long: "Make the next checkpoint of a policy now, and remove what it need not keep. The next one comes --every " +
			"later. Its end is waited for.",
		Example: "  rowraft checkpoint policy run-now nightly",
		Args:    cli.OneArg("the NAME of the policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var reply *rowraftv1.RunPolicyReply
			if err := remote.CallLong(cmd.Context(), g, rowraftv1.NewCheckpointsClient,
				func(ctx context.Context, c rowraftv1.CheckpointsClient) (err error) {
					reply, err = c.RunPolicy(ctx, &rowraftv1.RunPolicyRequest{Name: args[0]})
					return err
				}); err != nil {
				return namedPolicyError(cmd, err)
			}
			made := newPolicyJSON(reply.GetPolicy()).Checkpoints
			if len(made) == 0 {
				return showPolicy(g, cmd, "made a checkpoint, which is not kept", reply.GetPolicy())
			}
			return showPolicy(g, cmd, fmt.Sprintf("made %s/%s", reply.GetPolicy().GetPolicy().GetDestination(),
				made[len(made)-1]), reply.GetPolicy())
		},
	}
}

func newPolicyDeleteCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a policy; its checkpoints stay",
		Example: "  rowraft checkpoint policy delete nightly",
		Args:    cli.OneArg("the NAME of the policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := callPolicies(g, cmd, rowraftv1.CheckpointsClient.DeletePolicy,
				&rowraftv1.DeletePolicyRequest{Name: args[0]})
			if err != nil {
				return err
			}
			n := len(reply.GetPolicy().GetRecord().GetMade())
			return showPolicy(g, cmd, fmt.Sprintf("deleted; %s of it stay in %s", cli.Plural(n, "checkpoint"),
				reply.GetPolicy().GetPolicy().GetDestination()), reply.GetPolicy())
		},
	}
}
