package scheduler

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
// and never read: a pipe to which nobody writes. reading waits until somebody reads it,
// and it answers when the test ends.
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
			if !errors.Is(err, syscall.ENXIO) { // nobody reads
				t.Fatal(err)
			}
			select {
			case <-tick.C:
			case <-end:
				t.Fatal("nobody reads the manifest")
			}
		}
	}
}

// TestACheckpointWhoseDestinationHangsEndsWithItsCaller, and says until then who is in
// the way of others.
func TestACheckpointWhoseDestinationHangsEndsWithItsCaller(t *testing.T) {
	s, _ := withParts(t)
	dest := t.TempDir()
	reading := hangingManifest(t, dest, "base")
	create := func(ctx context.Context, patience time.Duration) error {
		_, err := s.checkpoints.create(ctx, patience, &creation{
			req:    &rowraftv1.CreateCheckpointRequest{Destination: dest, Name: "delta", Base: "base"},
			report: func(*rowraftv1.CreateCheckpointReply) error { return nil },
		})
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- create(ctx, time.Minute) }()
	reading()
	if err := create(t.Context(), 0); rowraft.CodeOf(err) != rowraft.CodeOverloaded || !strings.Contains(err.Error(), "a checkpoint to "+dest) {
		t.Errorf("a second one: %v, want Overloaded, and what is in the way", err)
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
	if err := s.checkpoints.acquire(t.Context(), 0, "the next"); err != nil {
		t.Errorf("the next one: %v", err)
	}
}
