package tidy

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// appliedPatterns are the packages that run in Apply, as the go command names them.
var appliedPatterns = []string{"./optim/...", "./shard/..."}

func TestApplyIsDeterministic(t *testing.T) {
	experiments := []string{""}
	if runtime.GOARCH == "amd64" {
		experiments = append(experiments, "simd")
	}
	for _, experiment := range experiments {
		t.Run("GOEXPERIMENT="+experiment, func(t *testing.T) {
			pkgs, err := packages.Load(&packages.Config{
				Mode: packages.LoadSyntax, Dir: root,
				Env: append(os.Environ(), "GOEXPERIMENT="+experiment),
			}, appliedPatterns...)
			if err != nil {
				t.Fatal(err)
			}
			loaded := make(map[string]bool)
			for _, p := range pkgs {
				for _, e := range p.Errors {
					t.Errorf("%s does not type-check: %v", p.PkgPath, e)
				}
				loaded[strings.TrimPrefix(p.PkgPath, Module+"/")] = true
				unit := Unit{Fset: p.Fset, Files: p.Syntax, Info: p.TypesInfo}
				for _, f := range unit.Check() {
					t.Error(f)
				}
			}
			for _, want := range []string{"optim", "shard", "shard/rowstore"} {
				if !loaded[want] {
					t.Errorf("package %s was not looked at: is it gone?", want)
				}
			}
		})
	}
}

func TestTypedRulesCatchBadExamples(t *testing.T) {
	for _, tc := range []struct{ name, code, want string }{
		{"a range over a map", `func f(m map[int]int) { for k := range m { _ = k } }`, "ranges over a map"},
		{"a range over a named map", `type m map[int]int; func f(x m) { for range x { } }`, "ranges over a map"},
		{"the keys of a map", `func f(m map[int]int) { _ = maps.Keys(m) }`, "uses maps.Keys"},
		{"the sorted keys of a map", `func f(m map[int]int) { _ = slices.Sorted(maps.Keys(m)) }`, ""},
		{"a range over a slice", `func f(m []int) { for range m { } }`, ""},
		{"a map with a reason", "func f(m map[int]int) {\n//tidy:allow determinism freed in any order\nfor range m { } }",
			""},

		{"a bare product", `func f(a, g float32) float32 { return a + g*g }`, "may be fused"},
		{"a product of three", `func f(a, b, c float32) float32 { return float32(a * b * c) }`, "may be fused"},
		{"a product in its own statement", `func f(a, g float32) float32 { x := g * g; return a + x }`, "may be fused"},
		{"a product behind a function", `func g(x float32) float32; func f(a, b float32) float32 { return g(a * b) }`,
			"may be fused"},
		{"a product in place", `func f(a, b float32) { a *= b }`, "may be fused"},
		{"a product of float64", `func f(a, b, c float64) float32 { return float32(a*b + c) }`, "may be fused"},
		{"a product of a named type", `type w float32; func f(a, b, c w) w { return a*b + c }`, "may be fused"},
		{"a product of a type parameter", `func f[T float32 | int](a, b, c T) T { return a*b + c }`, "may be fused"},
		{"converted products",
			`type w float32; func f(a, b float32, c, d w) float32 { return float32(a*b) + float32((a * b)) - float32(w(c*d)) }`,
			""},
		{"integers and constants", `func f(a, b, c int) (int, float32) { return a*b + c, 2 * 0.5 }`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := "package p\nimport (\"maps\"; \"slices\")\nvar _, _ = maps.Clone[map[int]int], slices.Clone[[]int]\n" +
				tc.code + "\n"
			unit := typeCheck(t, src)
			got := unit.Check()
			switch {
			case tc.want == "" && len(got) != 0:
				t.Errorf("got %v, want nothing found", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0].Msg, tc.want)):
				t.Errorf("got %v, want one finding with %q", got, tc.want)
			}
		})
	}
}

func typeCheck(t testing.TB, src string) *Unit {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "example.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	if _, err := cfg.Check("p", fset, []*ast.File{f}, info); err != nil {
		t.Fatal(err)
	}
	return &Unit{Fset: fset, Files: []*ast.File{f}, Info: info}
}

// The compiler fuses x*y+z wherever an instruction for it exists and the source
// lets it; a fused sum has other bits. This looks at what it really made.
func TestApplyHasNoFusedInstructions(t *testing.T) {
	for _, target := range Targets {
		t.Run(target.Name, func(t *testing.T) {
			found, n, err := Fused(root, target, appliedPatterns...)
			if err != nil {
				t.Fatal(err)
			}
			if n < 1000 {
				t.Fatalf("the listing has %d instructions: not the packages", n)
			}
			for _, f := range found {
				t.Errorf("fused: %s", f)
			}
			t.Logf("%d instructions, %d fused", n, len(found))
		})
	}
	t.Run("in assembly", func(t *testing.T) {
		for _, dir := range []string{"optim", "shard", "shard/rowstore"} {
			found, err := FusedAssembly(filepath.Join(root, dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				t.Errorf("fused: %s", f)
			}
		}
	})
}

func TestFusedInstructionsAreSeen(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module fused\n\ngo 1.26\n")
	write(t, filepath.Join(dir, "a.go"), `package fused

func Bare(acc, g float32) float32 { return acc + g*g }

func Wrapped(acc, g float32) float32 { return acc + float32(g*g) }
`)
	for _, target := range Targets {
		t.Run(target.Name, func(t *testing.T) {
			found, _, err := Fused(dir, target, ".")
			if err != nil {
				t.Fatal(err)
			}
			if len(found) != 1 || !strings.Contains(found[0], "a.go:3") {
				t.Errorf("found %q, want the one in Bare", found)
			}
		})
	}

	write(t, filepath.Join(dir, "b.s"), "TEXT ·f(SB), 0, $0\n\tVFMADD231PS Y0, Y1, Y2\n\tRET\n")
	found, err := FusedAssembly(dir)
	if err != nil || len(found) != 1 || !strings.Contains(found[0], "b.s:2") {
		t.Errorf("FusedAssembly: %q, %v, want the one on line 2", found, err)
	}
}
