package trainer

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/data"
)

// yamlBlock returns the first YAML block after heading in examples/README.md.
func yamlBlock(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n"+heading+"\n")
	_, block, open := strings.Cut(after, "```yaml\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !open || !closed {
		t.Fatalf("examples/README.md has no YAML block after %q", heading)
	}
	return block
}

// The job in examples/README.md is the default one.
func TestDocumentedDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(yamlBlock(t, "## A job")), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	if !reflect.DeepEqual(got.schemas(), want.schemas()) {
		t.Errorf("tables %+v, want %+v", got.schemas(), want.schemas())
	}
	if got.Epochs != 1 {
		t.Errorf("epochs %d, want 1", got.Epochs)
	}
	got.Epochs, got.Endpoints = 0, nil
	got.Embeddings, got.Dense = want.Embeddings, want.Dense // compared as tables
	if !reflect.DeepEqual(got, want) {
		t.Errorf("examples/README.md says %+v, the defaults are %+v", got, want)
	}
}

func TestDocumentedSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "schema.yaml")
	if err := os.WriteFile(path, []byte(yamlBlock(t, "## A schema")), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := data.LoadSchema(path); err != nil {
		t.Error(err)
	}
}
