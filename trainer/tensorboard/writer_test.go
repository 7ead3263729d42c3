package tensorboard

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
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
	text, err := os.ReadFile("testdata/events.hex")
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
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

// packages are what testdata/read.py imports.
const packages = "tensorboard==2.21.0"

// python returns an interpreter that has packages, from a virtual environment that is kept
// between runs, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no Python packages are installed")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no place to keep Python packages: %v", err)
	}
	venv := filepath.Join(cache, "rowraft-test", strings.ReplaceAll(packages, "==", "-"))
	bin := filepath.Join(venv, "bin", "python")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if exec.CommandContext(ctx, bin, "-c", "import tensorboard.backend.event_processing.event_accumulator").Run() == nil {
		return bin
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", venv},
		{bin, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", packages,
			"setuptools==80.9.0"},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: event files are not read by TensorBoard: %v: %v: %s", args, err, out)
		}
	}
	return bin
}

// TensorBoard reads the scalars of two runs, of which the second went back to step 3.
func TestTensorBoardReads(t *testing.T) {
	interpreter := python(t)
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
