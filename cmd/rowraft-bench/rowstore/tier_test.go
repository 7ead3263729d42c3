package rowstore

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
)

// TestTierMeasuresBothTables: every skew has its figures, rows were read from the file, and the memory kept its bar.
func TestTierMeasuresBothTables(t *testing.T) {
	got := map[string]figures.Figure{}
	c := tierConfig{rows: 50_000, times: 4, dir: t.TempDir(), seconds: 0.01}
	if err := tier(c, func(f figures.Figure) { got[f.Name] = f }); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tier/uniform/pull/read from the file", "tier/zipf 1.05/push/tiered",
		"tier/zipf 1.2/pull/in memory", "tier/file", "tier/rows written for a row on disk"} {
		if got[name].Value <= 0 {
			t.Errorf("%s is %v", name, got[name].Value)
		}
	}
	for name, f := range got {
		if strings.Contains(name, "memory of the tiered table") && !f.OK {
			t.Errorf("%s", f)
		}
	}
}
