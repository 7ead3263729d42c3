package figures

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

func TestFiguresKnowTheirBar(t *testing.T) {
	for _, tc := range []struct {
		f    Figure
		ok   bool
		text string
	}{
		{AtLeast("a", 5, "Mrows/s", 5), true, "≥ 5 ok"},
		{AtLeast("a", 4.9, "Mrows/s", 5), false, "≥ 5 MISSED"},
		{AtMost("a", 1, "ms", 1), true, "≤ 1 ok"},
		{AtMost("a", 1.1, "ms", 1), false, "≤ 1 MISSED"},
		{Exactly("a", 3, "pushes", 3), true, "= 3 ok"},
		{Exactly("a", 2, "pushes", 3), false, "= 3 MISSED"},
		{Free("a", 7, "ms"), true, "ms"},
	} {
		if s := tc.f.String(); tc.f.OK != tc.ok || !strings.HasSuffix(strings.TrimSpace(s), tc.text) {
			t.Errorf("%q: ok %v, want %v and %q at its end", s, tc.f.OK, tc.ok, tc.text)
		}
	}
}

func TestPrinterPrintsOneFigureALine(t *testing.T) {
	for _, tc := range []struct{ format, want string }{
		{cli.FormatTable, "slow "},
		{cli.FormatJSON, `{"name":"slow","value":2,"unit":"ms","bar":1,"at_most":true,"ok":false}` + "\n"},
		{cli.FormatYAML, "- name: slow\n"},
	} {
		var out strings.Builder
		p := NewPrinter(&out, tc.format)
		p.Add(AtLeast("fast", 3, "rows/s", 2))
		if err := p.Verdict(); err != nil {
			t.Errorf("%s: no figure missed its bar: %v", tc.format, err)
		}
		p.Add(AtMost("slow", 2, "ms", 1))
		if err := p.Verdict(); err == nil || err.Error() != "missed: slow" || p.Err() != nil {
			t.Errorf("%s: verdict %v, want missed: slow; printing: %v", tc.format, err, p.Err())
		}
		if !strings.Contains(out.String(), "\n"+tc.want) {
			t.Errorf("%s: no %q at a line's begin in\n%s", tc.format, tc.want, &out)
		}
	}
}
