package checkpoints

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// hangingManifest is a destination whose checkpoint name has a manifest that is opened
// and never read: a pipe without a writer. reading waits until the manifest is read. The pipe closes when the test
// ends.
func hangingManifest(t *testing.T, dest, name string) (reading func()) {
	t.Helper()
	file := filepath.Join(dest, name, checkpoint.ManifestFile)
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		end := time.After(time.Minute)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			w, err := os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			if err == nil {
				t.Cleanup(func() { _ = w.Close() })
				return
			}
			if !errors.Is(err, syscall.ENXIO) { // no reader
				t.Fatal(err)
			}
			select {
			case <-tick.C:
			case <-end:
				t.Fatal("the manifest is not read")
			}
		}
	}
}

// TestACheckpointWhoseDestinationHangsEndsWithItsCaller: until then a second one to the destination learns what is in
// its way, and tasks on other destinations do not wait.
func TestACheckpointWhoseDestinationHangsEndsWithItsCaller(t *testing.T) {
	s, _, _ := newSolo(t, 1, nil)
	dest := t.TempDir()
	reading := hangingManifest(t, dest, "base")
	create := func(ctx context.Context, dest string) error {
		_, err := s.create(ctx, 0, &creation{
			req:    &rowraftv1.CreateCheckpointRequest{Destination: dest, Name: "delta", Base: "base"},
			report: func(*rowraftv1.CreateCheckpointReply) error { return nil },
		})
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- create(ctx, dest) }()
	reading()
	for _, same := range []string{dest, dest + "/", "file://" + dest} {
		if err := create(t.Context(), same); rowraft.CodeOf(err) != rowraft.CodeOverloaded ||
			!strings.Contains(err.Error(), "a checkpoint to "+dest) {
			t.Errorf("a second one to %s: %v, want Overloaded, and what is in the way", same, err)
		}
	}
	if err := create(t.Context(), t.TempDir()); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Errorf("one to another destination: %v, want that it looked for its base there: NotFound", err)
	}
	for _, phase := range []taskPhase{writes, cuts, restores} {
		other := &task{what: "another"}
		if in := s.ops.try(other, phase); in != nil {
			t.Errorf("phase %d of another task waits for %s", phase, in.what)
		}
		s.ops.leave(other)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the first one: %v, want that it was cancelled", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the first one still waits for its destination")
	}
	if err := create(t.Context(), dest); rowraft.CodeOf(err) == rowraft.CodeOverloaded {
		t.Errorf("the next one: %v", err)
	}
}

// TestARestoreWhoseSourceHangsDelaysNoTask: a restore excludes other tasks only after it has begun.
func TestARestoreWhoseSourceHangsDelaysNoTask(t *testing.T) {
	s, _, _ := newSolo(t, 1, nil)
	dest := t.TempDir()
	reading := hangingManifest(t, dest, "old")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.RestoreCheckpoint(&rowraftv1.RestoreCheckpointRequest{Destination: dest, Name: "old"},
			openStream{ctx: ctx})
	}()
	reading()
	for _, phase := range []taskPhase{writes, cuts, restores} {
		other := &task{what: "another"}
		if in := s.ops.try(other, phase); in != nil {
			t.Errorf("phase %d of another task waits for %s", phase, in.what)
		}
		s.ops.leave(other)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the restore has succeeded")
	}
}

// Tasks exclude those that they must, and nothing else.
func TestTasksExclude(t *testing.T) {
	to := func(dest string) *task { return &task{what: dest, destination: dest} }
	for name, tc := range map[string]struct {
		there map[*task]taskPhase
		try   *task
		phase taskPhase
		want  bool // it is let in
	}{
		"a second checkpoint to a destination": {map[*task]taskPhase{to("a"): opens}, to("a"), opens, false},
		"one to another destination":           {map[*task]taskPhase{to("a"): cuts}, to("b"), opens, true},
		"one that writes, during a cut":        {map[*task]taskPhase{to("a"): cuts}, to("b"), writes, true},
		"a second cut":                         {map[*task]taskPhase{to("a"): cuts}, to("b"), cuts, false},
		"a cut while others write": {map[*task]taskPhase{to("a"): writes, to("b"): writes}, to("c"), cuts,
			true},
		"a restore while one looks at its destination": {map[*task]taskPhase{to("a"): opens}, to(""), restores, true},
		"a restore while one writes":                   {map[*task]taskPhase{to("a"): writes}, to(""), restores, false},
		"a restore during a restore":                   {map[*task]taskPhase{to(""): restores}, to(""), restores, false},
		"a checkpoint looks while there is a restore":  {map[*task]taskPhase{to(""): restores}, to("a"), opens, true},
		"a checkpoint begins during a restore":         {map[*task]taskPhase{to(""): restores}, to("a"), writes, false},
		"a checkpoint too many": {map[*task]taskPhase{to("a"): writes, to("b"): cuts, to("c"): writes},
			to("d"), writes, false},
	} {
		var l tasks
		for o, phase := range tc.there {
			if l.try(o, phase) != nil {
				t.Fatalf("%s: %s is not let in", name, o.what)
			}
		}
		if got := l.try(tc.try, tc.phase) == nil; got != tc.want {
			t.Errorf("%s: let in: %v, want %v", name, got, tc.want)
		}
	}
}
