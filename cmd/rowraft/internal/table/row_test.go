package table

import (
	"strings"
	"testing"
)

func TestRowsOfABoundedReadSayTheirAge(t *testing.T) {
	age, lag := 1.25, uint64(1)
	v := Rows{AgeSeconds: &age, LagEntries: &lag, Rows: []Row{{"7", true, []float32{1}}}}
	var b strings.Builder
	if err := v.print(&b, false); err != nil || !strings.Contains(b.String(),
		"at most 1.250 s old; their replicas lacked 1 entry of the log") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
