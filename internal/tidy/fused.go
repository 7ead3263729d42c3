package tidy

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// fusedOp matches the multiply-and-add instructions of amd64 (VFMADD231SS,
// VFNMSUB132PS …) and arm64 (FMADDS, FNMSUBD, VFMLA …).
var fusedOp = regexp.MustCompile(`^(VFN?M(ADD|SUB|ADDSUB|SUBADD)[0-9].*|FN?M(ADD|SUB)[SDH]?|VFML[AS])$`)

// listing is one line of `go build -gcflags=-S`: offset, offset, (file:line), instruction.
var listing = regexp.MustCompile(`^\t0x[0-9a-f]+ \d+ \(([^)]*)\)\t(\S+)`)

// A Target is one way to build.
type Target struct {
	Name string
	Env  []string
}

// Targets are the builds in which the compiler is free to fuse.
var Targets = []Target{
	{"amd64 v3, simd", []string{"GOARCH=amd64", "GOAMD64=v3", "GOEXPERIMENT=simd"}},
	{"amd64 v3, plain", []string{"GOARCH=amd64", "GOAMD64=v3", "GOEXPERIMENT="}},
	{"arm64", []string{"GOARCH=arm64", "GOEXPERIMENT="}},
}

// Fused compiles packages of the module in dir and lists the fused instructions
// in the code that the compiler made of them.
//
// It reads the compiler's own listing: `go tool objdump` does not know the
// encoding of AVX instructions and prints a VFMADD231SS as question marks.
func Fused(dir string, target Target, packages ...string) (found []string, instructions int, err error) {
	cmd := exec.Command("go", append([]string{"build", "-gcflags=-S"}, packages...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux"), target.Env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, 0, fmt.Errorf("build for %s: %w\n%s", target.Name, err, lastLines(string(out), 20))
	}
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := listing.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		instructions++
		if fusedOp.MatchString(m[2]) {
			found = append(found, m[1]+": "+m[2])
		}
	}
	return found, instructions, lines.Err()
}

// FusedAssembly lists the fused instructions in hand-written assembly.
func FusedAssembly(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.s"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(string(src), "\n") {
			if words := strings.Fields(line); len(words) > 0 && fusedOp.MatchString(words[0]) {
				found = append(found, fmt.Sprintf("%s:%d: %s", name, i+1, words[0]))
			}
		}
	}
	return found, nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
