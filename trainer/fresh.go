package trainer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Tables returns the tables of the job that exist, with their rows.
func (c *Config) Tables(ctx context.Context, cl *client.Client) ([]client.TableInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	all, err := cl.Tables(ctx)
	return slices.DeleteFunc(all, func(t client.TableInfo) bool { return !c.hasTable(t.Schema.Name) }), err
}

// hasTable reports whether the job has a table of this name: embeddings, dense weights, audit rows, the count of
// its pushes, or a single parameter. No other job has a table of such a name: [Config.Validate] refuses jobs named
// JOB.dense, JOB.embeddings and such.
func (c *Config) hasTable(name string) bool {
	table, found := strings.CutPrefix(name, c.Job)
	return found && (slices.Contains([]string{tables.EmbeddingsSuffix, tables.DenseSuffix, tables.AuditSuffix,
		tables.ProgressSuffix}, table) || strings.HasPrefix(table, tables.DenseSuffix+".") ||
		strings.HasPrefix(table, tables.EmbeddingsSuffix+"."))
}

// StartOver deletes the given tables of the job, so that it starts from its initial weights.
//
// Errors: CodePrecondition if a worker trains in the job.
func (c *Config) StartOver(ctx context.Context, cl *client.Client, old []client.TableInfo) error {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	workers, err := jobs.Training(ctx, cl, c.Job)
	if err != nil {
		return err
	}
	if len(workers) > 0 {
		return rowraft.Errorf(rowraft.CodePrecondition,
			"job %s trains with %s: stop it first with `rowraft job stop %s`, or start this worker without --fresh", c.Job,
			strings.Join(workers, ", "), c.Job)
	}
	for _, t := range old {
		table, err := cl.Table(ctx, t.Schema.Name)
		if err == nil {
			err = cl.DropTable(ctx, table)
		}
		if err != nil && rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
			return fmt.Errorf("start job %s over: %w", c.Job, err)
		}
	}
	return nil
}

// earlierRuns describes the rows of earlier runs with which the run of m continues; "" if there are none. Only the
// first worker of a run describes them. Call it before the run creates tables.
func (c *Config) earlierRuns(ctx context.Context, cl *client.Client, m *jobs.Member) string {
	if !m.First || c.again {
		return ""
	}
	old, err := c.Tables(ctx, cl)
	rows := uint64(0)
	for _, t := range old {
		rows += t.Rows
	}
	if err != nil || rows == 0 { // the text is for information only
		return ""
	}
	text := fmt.Sprintf("job %s continues with %d rows", c.Job, rows)
	if m.Steps > 0 {
		text += fmt.Sprintf(" from step %d", m.Steps)
	}
	where := "its data from the beginning"
	if !m.Began {
		where = "its data from where it stopped"
	}
	return fmt.Sprintf("%s, and reads %s; --fresh starts over", text, where)
}
