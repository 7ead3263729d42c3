package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func recentText(l *recentLog) string {
	var b strings.Builder
	_, _ = l.WriteTo(&b) // a Builder takes everything
	return b.String()
}

func TestTheLastLinesStay(t *testing.T) {
	l := newRecentLog(20)
	for _, step := range []struct{ write, want string }{
		{"", ""},
		{"one\n", "one\n"},
		{"two\nthree\n", "one\ntwo\nthree\n"},
		{"seven\n", "one\ntwo\nthree\nseven\n"}, // 20 bytes
		{"8\n", "two\nthree\nseven\n8\n"},
		{"abcdefghijklmnopqrs\n", "abcdefghijklmnopqrs\n"},
		{"abcdefghijklmnopqrstuvwxyz\n", "abcdefghijklmnopqrs\n"}, // cut
		{"no end", "no end\n"},
	} {
		if n, err := l.Write([]byte(step.write)); n != len(step.write) || err != nil {
			t.Fatalf("Write(%q) = %d, %v", step.write, n, err)
		}
		if got := recentText(l); got != step.want {
			t.Fatalf("after %q it holds %q, want %q", step.write, got, step.want)
		}
	}
}

// TestLinesStayWhole: concurrent writers and readers never see a part of a line.
func TestLinesStayWhole(t *testing.T) {
	l := newRecentLog(1000)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 500 {
				fmt.Fprintf(l, "writer %d line %03d\n", i, j)
				for line := range strings.Lines(recentText(l)) {
					if len(line) != len("writer 0 line 000\n") {
						t.Errorf("a broken line %q", line)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(recentText(l)); n > 1000 || n < 900 {
		t.Errorf("it holds %d bytes of 1000", n)
	}
}
