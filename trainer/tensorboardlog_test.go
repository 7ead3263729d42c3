package trainer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/report"
)

// points decodes the one event file of dir, by the format page and without code of the writer.
func points(t *testing.T, dir string) map[string]map[int64]float32 {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("event files %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) uint32 {
		c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return c>>15 + c<<17 + 0xa282ead8
	}
	out := map[string]map[int64]float32{}
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		event := b[12 : 12+n]
		if sum(b[:8]) != binary.LittleEndian.Uint32(b[8:]) || sum(event) != binary.LittleEndian.Uint32(b[12+n:]) {
			t.Fatal("a record with a wrong sum")
		}
		b = b[16+n:]
		var step int64
		fields(event, func(field int, number uint64, bytes []byte) {
			switch field {
			case 2:
				step = int64(number)
			case 5:
				fields(bytes, func(_ int, _ uint64, value []byte) {
					var tag string
					fields(value, func(field int, number uint64, bytes []byte) {
						if field == 1 {
							tag = string(bytes)
							return
						}
						if out[tag] == nil {
							out[tag] = map[int64]float32{}
						}
						out[tag][step] = math.Float32frombits(uint32(number))
					})
				})
			}
		})
	}
	return out
}

// fields walks a message.
func fields(b []byte, f func(field int, number uint64, bytes []byte)) {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		b = b[n:]
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			f(int(key>>3), v, nil)
			b = b[n:]
		case 1:
			f(int(key>>3), binary.LittleEndian.Uint64(b), nil)
			b = b[8:]
		case 2:
			size, n := binary.Uvarint(b)
			f(int(key>>3), 0, b[n:n+int(size)])
			b = b[n+int(size):]
		case 5:
			f(int(key>>3), uint64(binary.LittleEndian.Uint32(b)), nil)
			b = b[4:]
		default:
			panic(fmt.Sprint("a field of kind ", key&7))
		}
	}
}

func TestTensorBoardOfARun(t *testing.T) {
	dir := t.TempDir()
	cfg := tinyConfig(10, 2)
	cfg.TensorBoard = report.TensorBoardConfig{Dir: dir, Every: 4}
	losses := map[int64]float32{}
	r := mustRun(t, cfg, newLocal(t), func(e report.Event) {
		if e.Event == report.EventStep {
			losses[e.Step] = float32(e.Loss)
		}
	})
	got := points(t, dir)
	for _, step := range []int64{4, 8, 10} { // and the last
		if got["loss"][step] != losses[step] || losses[step] == 0 {
			t.Errorf("step %d: loss %v, want %v", step, got["loss"][step], losses[step])
		}
		for _, tag := range []string{"auc", "examples_per_second", "steps_per_second", "staleness_steps", "waiting",
			"batches_skipped", "batches_late"} {
			if _, ok := got[tag][step]; !ok {
				t.Errorf("step %d has no %s", step, tag)
			}
		}
	}
	if len(got["loss"]) != 3 || len(got["accuracy"]) != 0 {
		t.Errorf("loss %v, accuracy %v, want three steps, and no accuracy of a click log", got["loss"], got["accuracy"])
	}
	if got["held/auc"][10] != float32(r.AUC) || got["held/log_loss"][10] != float32(r.LogLoss) {
		t.Errorf("held-out part %v %v, want %v %v", got["held/auc"], got["held/log_loss"], r.AUC, r.LogLoss)
	}
}

// Each of several trainers has a folder; a folder that cannot be written is refused before training.
func TestTensorBoardFolders(t *testing.T) {
	dir := t.TempDir()
	cfg := tinyConfig(2, 0)
	cfg.TensorBoard.Dir, cfg.Trainers, cfg.Rank = dir, 3, new(int)
	*cfg.Rank = 2
	mustRun(t, cfg, newLocal(t), nil)
	if got := points(t, filepath.Join(dir, "trainer-2")); len(got["loss"]) != 1 {
		t.Errorf("%v, want one point at the end", got)
	}
	cfg.TensorBoard.Dir = "/dev/null/x"
	j, err := NewJob(t.Context(), cfg, newLocal(t), nil)
	if err == nil {
		_, err = j.Run(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "tensorboard: ") {
		t.Errorf("a folder that cannot be made: %v", err)
	}
}

// A disk error ends the event file and not the run.
func TestTensorBoardFails(t *testing.T) {
	cfg := tinyConfig(5, 0)
	cfg.TensorBoard = report.TensorBoardConfig{Dir: t.TempDir(), Every: 1}
	notes := 0
	j, err := NewJob(t.Context(), cfg, newLocal(t), func(e report.Event) {
		if e.Event == report.EventNote && strings.Contains(e.Message, "TensorBoard") {
			notes++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := j.cfg.TensorBoard.Open("", 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.End(&report.Result{}); err != nil { // the file is closed, so every write fails
		t.Fatal(err)
	}
	j.report.SetFile(b)
	j.cfg.TensorBoard.Dir = ""
	if r, err := j.Run(t.Context()); err != nil || r.Steps != 5 || notes != 1 {
		t.Errorf("%+v, %v, %d notes, want a whole run and one note", r, err, notes)
	}
	if err := b.End(&report.Result{}); err != nil {
		t.Error(err)
	}
}
