package trainer

import (
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
)

// FuzzConfig: LoadConfig reads a job's file, or refuses it as CodeInvalidArgument; a valid job survives being
// written and read.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{"train-adult.yaml", "train-criteo.yaml", "train-generated.yaml", "train-mnist.yaml"} {
		text, err := os.ReadFile(filepath.Join("../examples", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("job: x\ngenerator: {examples: 10}\nembeddings: {optimizer: adam, lr: .inf}\n"))
	f.Add([]byte("mode: never\n"))
	f.Add([]byte("unknown: 1\n"))
	f.Add([]byte("a: &a [*a, *a]\n"))
	f.Add([]byte("a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n"))
	path := filepath.Join(f.TempDir(), "job.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var c Config
		var err error
		if n := allocs.Bytes(func() {
			if c, err = LoadConfig(path); err == nil {
				err = c.Validate()
			}
		}); n > 4<<20+4096*uint64(len(text)) {
			t.Errorf("%d bytes made it allocate %d", len(text), n)
		}
		if err != nil {
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("%v has code %v, want CodeInvalidArgument", err, rowraft.CodeOf(err))
			}
			return
		}
		out, err := yaml.Marshal(&c)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, out, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := LoadConfig(path)
		if err != nil {
			t.Fatalf("%s\nis written as\n%s: %v", text, out, err)
		}
		if err := again.Validate(); err != nil {
			t.Errorf("%s\nis valid, written as\n%s\nit is not: %v", text, out, err)
		}
	})
}

// FuzzFingerprint: a configuration in a state is compared or refused, with the same result in both directions.
func FuzzFingerprint(f *testing.F) {
	cfg := tinyConfig(1, 0)
	j, err := NewJob(f.Context(), cfg, newLocal(f), nil)
	if err != nil {
		f.Fatal(err)
	}
	mine := j.cfg.fingerprint(j.set.TrainSize())
	f.Add(mine)
	f.Add([]byte(`{"batch":1,"model":7}`))
	f.Add([]byte(`{"model":{"dim":{}}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, was []byte) {
		err := sameFingerprint(was, mine)
		if err != nil && rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%v has code %v, want CodeInvalidArgument", err, rowraft.CodeOf(err))
		}
		if back := sameFingerprint(mine, was); (err == nil) != (back == nil) {
			t.Errorf("%s and %s: %v; the other way %v", was, mine, err, back)
		}
	})
}
