package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const program = `package main

import (
	"context"
	"fmt"
	"time"
)

func late(said chan string) { said <- "late" }

func main() {
	said := make(chan string)
	go late(said)
	go func() { said <- "soon" }()
	for range 2 {
		select {
		case s := <-said:
			fmt.Println(s)
		case <-time.After(time.Minute):
		}
	}
	call(context.Background(), func() { fmt.Println("called") })
}

func call(_ context.Context, f func()) {
	f()
	select {
	case <-time.After(0):
	default:
	}
}
`

// One point alone is slow, and the other goroutines overtake it.
func TestAPointIsSlow(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"main.go": program, "go.mod": "module m\n\ngo 1.26\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(root, dir); err != nil {
		t.Fatal(err)
	}
	copied, err := os.ReadFile(filepath.Join(dir, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"main.go:9", "main.go:14", "main.go:17", "main.go:19", "main.go:25"} {
		if !strings.Contains(string(copied), `tardySleep("`+point+`")`) {
			t.Errorf("no point at %s", point)
		}
	}
	if n := strings.Count(string(copied), "tardySleep("); n != 5 {
		t.Errorf("%d points, want 5", n)
	}
	var overlay struct{ Replace map[string]string }
	text, err := os.ReadFile(filepath.Join(dir, "overlay.json"))
	if err == nil {
		err = json.Unmarshal(text, &overlay)
	}
	if err != nil || len(overlay.Replace) != 2 {
		t.Fatalf("overlay %s: %v", text, err)
	}
	bin := filepath.Join(dir, "m")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, ".")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for only, first := range map[string]string{"main.go:9": "soon", "main.go:14": "late"} {
		t.Run(only+" is slow", func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(bin)
			cmd.Env = append(os.Environ(), "ROWRAFT_TARDY_SEED=1", "ROWRAFT_TARDY_MAX=16s", "ROWRAFT_TARDY_ONLY="+only)
			out, err := cmd.Output()
			if err != nil || !strings.HasPrefix(string(out), first) {
				t.Errorf("it prints %q, %v: want %q first", out, err, first)
			}
		})
	}
}
