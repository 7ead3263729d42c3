package tensorboard

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/testutil"
)

func created(t *testing.T, dir string, first int64, now time.Time) *Writer {
	t.Helper()
	w, err := Create(dir, first, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func write(t *testing.T, w *Writer, now time.Time, step int64, scalars ...Scalar) {
	t.Helper()
	if err := w.Write(now, step, scalars...); err != nil {
		t.Fatal(err)
	}
}

func TestGoldenEvents(t *testing.T) {
	now, dir := time.Unix(1700000000, 5e8), filepath.Join(t.TempDir(), "new", "folder")
	w := created(t, dir, 300, now)
	write(t, w, now, 300, Scalar{"loss", 0.25}, Scalar{"lost", math.NaN()}, Scalar{"huge", 1e300}, Scalar{"auc", -1.5})
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.1700000000.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	got, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if want := testutil.GoldenHex(t, "testdata/events.hex"); !bytes.Equal(got, want) {
		t.Errorf("% x\nwant\n% x", got, want)
	}
}

func TestWriteAfterAnError(t *testing.T) {
	w := created(t, t.TempDir(), 1, time.Now())
	w.Close()
	if w.Write(time.Now(), 1) == nil {
		t.Error("a write to a closed file: want an error")
	}
	if _, err := Create("/dev/null/x", 1, time.Now()); err == nil {
		t.Error("a folder that cannot be: want an error")
	}
}

// TensorBoard reads the scalars of two runs, of which the second went back to step 3.
func TestTensorBoardReads(t *testing.T) {
	interpreter := testutil.Python(t, "tensorboard.backend.event_processing.event_accumulator", // as in testdata/read.py
		"tensorboard==2.21.0")
	dir, now := t.TempDir(), time.Unix(1700000000, 0)
	w := created(t, dir, 1, now)
	for step := int64(1); step <= 5; step++ {
		write(t, w, now, step, Scalar{"loss", 1 / float64(step*2)}, Scalar{"auc", 0.5})
	}
	later := now.Add(time.Hour)
	w = created(t, dir, 3, later)
	write(t, w, later, 3, Scalar{"loss", 0.75})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, interpreter, "testdata/read.py", dir)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var got map[string][][2]float64
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string][][2]float64{"loss": {{1, 0.5}, {2, 0.25}, {3, 0.75}}, "auc": {{1, 0.5}, {2, 0.5}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
