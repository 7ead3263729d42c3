package optim

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// TestNoFusedInstructions reads the machine code of this package, built for machines whose compilers fuse
// x*y+z, and rejects every fused instruction: it would give different bits on different replicas.
// TestUpdateBits tests only the instructions that this machine runs.
func TestNoFusedInstructions(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("the go command is not on the path")
	}
	fused := regexp.MustCompile(`\t(VF(N?M)(ADD|SUB)\w*|FN?M(ADD|SUB)\w*|VFML[AS]\w*)\b`)
	if !fused.MatchString("\tVFMADD231PS Y0, Y1, Y2") || !fused.MatchString("\tFNMSUBS F0, F1, F2, F3") {
		t.Fatal("the pattern does not match a fused instruction")
	}
	for _, tc := range []struct {
		name string
		simd bool
		env  []string
	}{
		{"amd64 v3", false, []string{"GOARCH=amd64", "GOAMD64=v3", "GOEXPERIMENT="}},
		{"amd64 v3 with SIMD kernels", true, []string{"GOARCH=amd64", "GOAMD64=v3", "GOEXPERIMENT=simd"}},
		{"arm64", false, []string{"GOARCH=arm64", "GOEXPERIMENT="}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			// The assembler's listing: objdump does not decode AVX instructions.
			cmd := exec.CommandContext(t.Context(), goTool, "build", "-gcflags=-S", "-o", os.DevNull, ".")
			cmd.Env = append(append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0", "GOFLAGS="), tc.env...)
			text, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("go build -gcflags=-S: %v\n%s", err, text)
			}
			for _, kernel := range []string{"sgd", "add", "momentum", "adagrad", "squares", "rowWise", "adam", "ftrl",
				"addDecay", "clamp"} {
				if !bytes.Contains(text, []byte("optim."+kernel+"Plain STEXT")) {
					t.Fatalf("the listing lacks %sPlain (%d bytes)", kernel, len(text))
				}
				if tc.simd && !bytes.Contains(text, []byte("optim."+kernel+" STEXT")) {
					t.Fatalf("the listing lacks the SIMD kernel %s (%d bytes)", kernel, len(text))
				}
			}
			for line := range bytes.Lines(text) {
				if fused.Match(line) {
					t.Errorf("fused: %s", bytes.TrimSpace(line))
				}
			}
		})
	}
}
