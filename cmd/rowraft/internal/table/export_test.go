package table

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/tablefile"
)

// TestInterruptedExportLeavesNothing interrupts an export between two batches, lets
// another one stand still, and fails a third.
func TestInterruptedExportLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	for _, format := range tablefile.Formats() {
		for name, between := range map[string]func(ctx context.Context, cancel func()) error{
			"interrupted":    func(_ context.Context, cancel func()) error { cancel(); return nil },
			"standing still": func(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() },
			"broken":         func(context.Context, func()) error { return broken },
			"good":           func(context.Context, func()) error { return nil },
		} {
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			cmd := &cobra.Command{}
			cmd.SetContext(ctx)
			cmd.SetErr(new(bytes.Buffer))
			src := &tableSource{
				schema: rowraft.Schema{Name: "t", Dim: 2}, rows: 2,
				scan: func(ctx context.Context, rows func([]rowraft.Key, []float32) error) error {
					if err := rows([]rowraft.Key{1}, []float32{1, 2}); err != nil {
						return err
					}
					if err := between(ctx, cancel); err != nil {
						return err
					}
					return rows([]rowraft.Key{2}, []float32{3, 4})
				},
			}
			g := &remote.Flags{Timeout: 20 * time.Millisecond}
			if name != "standing still" {
				g.Timeout = time.Minute
			}
			n, err := writeExport(g, cmd, src, &exportFlags{to: filepath.Join(dir, "x."+string(format))}, format,
				rowraft.Float32)
			cancel()
			files, rerr := os.ReadDir(dir)
			if rerr != nil {
				t.Fatal(rerr)
			}
			if name == "good" {
				if err != nil || n != 2 || len(files) == 0 {
					t.Errorf("%s: %d rows, %v, files %v", format, n, err, files)
				}
				continue
			}
			if err == nil || len(files) > 0 {
				t.Errorf("%s, %s: %v, and files %v", format, name, err, files)
			}
			if name == "standing still" && (rowraft.CodeOf(err) != rowraft.CodeDeadline ||
				!strings.Contains(err.Error(), "no progress for 20ms")) {
				t.Errorf("%s, %s: %v", format, name, err)
			}
		}
	}
}
