package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer"
)

// A trainer follows a folder on a real cluster: rows of new ids appear, windows are told, a leader
// dies meanwhile, SIGINT makes a checkpoint, and from it training goes on behind what was read.
func TestTrainingOnAStream(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{})
	dir, dest := t.TempDir(), t.TempDir()
	folder := filepath.Join(dir, "clicks")
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	schema := file("schema.yaml", "label: {column: click}\ncategorical:\n  - {column: ad}\n  - {column: user}\n")
	config := file("job.yaml", fmt.Sprintf(`job: stream
batch: 32
lease: 1h
audit: true
resume: auto
data: {follow: %s, schema: %s, window: 200ms}
model: {dim: 8, bottom: [16], top: [16]}
checkpoint: {to: %s, on_stop: true}
`, folder, schema, dest))
	const users = 5
	lines := func(name string, from, to int) {
		text := "click,ad,user\n"
		for i := from; i < to; i++ {
			text += fmt.Sprintf("%d,ad%d,user%d\n", i%2, i, i%users)
		}
		hidden := filepath.Join("clicks", "."+name) // appears whole
		if err := os.Rename(file(hidden, text), filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	rows := func(n int) {
		t.Helper()
		c.hasRows("stream.embeddings", uint64(n+users)) // one for each ad and user
	}
	tr := &trainers{c: c, dir: dir, config: config, n: 1}
	run := func() { tr.start() }
	stop := func() {
		t.Helper()
		if err := tr.procs[0].cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if code := tr.procs[0].code(t, patience); code != 130 {
			t.Fatalf("exit code %d:\n%s%s", code, &tr.procs[0].stdout, &tr.procs[0].stderr)
		}
	}
	lines("a.csv", 0, 100)
	run()
	tr.reached(1) // the table is there
	rows(100)
	victim := c.Servers()[0]
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	lines("b.csv", 100, 250)
	tr.reached(9)
	c.restartAll([]*localcluster.Server{victim})
	rows(250)
	stop()
	inWindows := 0
	for line := range strings.Lines(string(mustRead(t, tr.progress(0)))) {
		var e trainer.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Window != nil {
			inWindows += int(e.Window.Examples)
		}
	}
	if inWindows != 250 {
		t.Errorf("%d examples in windows, want 250", inWindows)
	}
	made := completeOf(listed(t, dest), "stream-stop-") // more than one, if its leader was lost on the way
	if len(made) == 0 {
		t.Fatalf("checkpoints %v, want the one of the stop", listed(t, dest))
	}
	c.mustRestore(dest+"/"+made[len(made)-1], "--replace")
	lines("c.csv", 250, 300)
	run()
	tr.reached(10)
	rows(300)
	stop()
	if r := tr.procs[0].stdout.String(); !strings.Contains(r, "300 examples") {
		t.Errorf("the second run does not end with 300 examples:\n%s", r)
	}
	c.sameDigests()
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
