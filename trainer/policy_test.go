package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestPoliciesOfAJob: the schemas have the table policies of a job's file.
func TestPoliciesOfAJob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.yaml")
	load := func(text string) Config {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := load(`
generator: {examples: 100}
embeddings: {storage: bfloat16, admission: "count:3", expire: 168h, capacity: {rows: 1000000, evict: lru},
  store: tiered, memory: 64MiB}
dense: {storage: bfloat16}
`)
	tables := c.schemas()
	want := tables[0]
	want.Storage, want.Admission = rowraft.BFloat16, rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	want.Expire, want.Capacity = 7*24*3600, rowraft.Capacity{Rows: 1_000_000, Evict: rowraft.EvictLRU}
	want.Memory = 64 << 20
	if tables[0] != want || tables[1].Storage != rowraft.BFloat16 {
		t.Errorf("tables %+v, want the first as %+v and the second in bfloat16", tables, want)
	}
	for text, says := range map[string]string{
		"embeddings: {storage: half}":                 "want float32 or bfloat16",
		"embeddings: {admission: often}":              "count:3",
		"embeddings: {expire: 1.5s}":                  "whole seconds",
		"embeddings: {capacity: {rows: 100}}":         "4096",
		"embeddings: {capacity: {evict: first}}":      "lru or lfu",
		"embeddings: {store: disk}":                   "want memory or tiered",
		"embeddings: {store: tiered}":                 "such as 8GiB",
		"embeddings: {memory: 1GiB}":                  "needs store: tiered",
		"embeddings: {store: tiered, memory: 1KB}":    "want 1024",
		"dense: {store: tiered, memory: 1GiB}":        "only a sparse one",
		"dense: {expire: 5s}":                         "dense table",
		"dense: {capacity: {rows: 9999, evict: lru}}": "dense table",
	} {
		c := load("generator: {examples: 100}\n" + text + "\n")
		if err := c.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}
