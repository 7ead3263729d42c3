package job

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newJobDeleteCmd(g *remote.Flags) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Remove a job without running trainers from the registry",
		Long: `Remove a job without running trainers from the registry. It asks for the name to be typed again, unless --yes is given.

The tables of the job and its checkpoints stay. The registry loses how far the job has read its data: workers that enter a job of
this name later begin with the data from its start, unless they resume from a checkpoint. A job that trains is refused: stop it first.
The registry forgets jobs by itself: 7 days after they are done or have failed, 30 days after they were stopped.`,
		Example: `  rowraft job delete ctr
  rowraft job delete ctr --yes -o json`,
		Args: cli.OneArg("the NAME of the job"),
		RunE: func(cmd *cobra.Command, args []string) error { return deleteJob(g, cmd, args[0], yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func deleteJob(g *remote.Flags, cmd *cobra.Command, name string, yes bool) error {
	j, err := describeJob(cmd.Context(), g, name)
	if err != nil {
		return err
	}
	if names := stillTraining(j); len(names) > 0 {
		return rowraft.Errorf(rowraft.CodePrecondition,
			"job %s: %d workers train in it; stop it first with `rowraft job stop %s`", name, len(names), name)
	}
	v := newTrainingJSON(j)
	if !yes {
		if err := terminal.ConfirmOrRefuse(cmd,
			fmt.Sprintf(
				"Job %s is %s. The registry loses how far it has read its data; its tables stay. Type its name to delete it: ",
				name, v.State), name, "--yes"); err != nil {
			return err
		}
	}
	_, err = remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewJobsClient, rowraftv1.JobsClient.DeleteJob,
		&rowraftv1.DeleteJobRequest{Job: name, Run: j.GetRun()})
	if err != nil {
		return fmt.Errorf("job delete %s: %w", name, err)
	}
	out := struct {
		Schema  string `json:"schema"`
		Job     string `json:"job"`
		Deleted bool   `json:"deleted"`
	}{cli.JSONSchema, name, true}
	return cli.Show(cmd.OutOrStdout(), g.Output, out, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "job %s deleted\n", name)
		return err
	})
}
