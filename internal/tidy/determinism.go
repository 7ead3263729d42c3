package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// applied lists the packages whose code runs in Apply: every replica must
// compute the same bits from the same log.
var applied = []string{"optim", "shard"}

// checkDeterministicImports keeps clocks, randomness and inexact functions out
// of code that applies entries.
func checkDeterministicImports(r *Repo) []Finding {
	const rule = "determinism"
	forbidden := map[string]string{
		"math/rand":    "applies log entries: nothing random",
		"math/rand/v2": "applies log entries: nothing random",
		"crypto/rand":  "applies log entries: nothing random",
	}
	var out []Finding
	for _, f := range r.Files {
		if f.Test || !under(applied...)(f.Dir) {
			continue
		}
		for p, at := range sorted(imports(f)) {
			if why, bad := forbidden[p]; bad {
				out = append(out, r.finding(rule, f, at, "imports %s in code that %s", p, why))
			}
		}
		callsOf(f.AST, "math", func(call *ast.CallExpr, name string) {
			if !exactMath[name] {
				out = append(out, r.finding(rule, f, call, "calls math.%s, which is not exact on every machine", name))
			}
		})
		clock := importName(f.AST, "time")
		ast.Inspect(f.AST, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch id, _ := sel.X.(*ast.Ident); {
			case sel.Sel.Name == "MulAdd" || sel.Sel.Name == "MulAddSub" || sel.Sel.Name == "MulSubAdd":
				// So the SIMD package calls its fused operations.
				out = append(out, r.finding(rule, f, sel, "calls %s, a fused operation", sel.Sel.Name))
			case id != nil && id.Name == clock && !isDuration[sel.Sel.Name]:
				out = append(out,
					r.finding(rule, f, sel, "uses time.%s in code that applies log entries: time comes with the entry", sel.Sel.Name))
			}
			return true
		})
	}
	return out
}

// isDuration lists the names of package time that know no clock.
var isDuration = map[string]bool{
	"Duration": true, "Nanosecond": true, "Microsecond": true, "Millisecond": true,
	"Second": true, "Minute": true, "Hour": true,
}

// exactMath lists the functions of package math whose result IEEE 754 fixes.
var exactMath = map[string]bool{
	"Abs": true, "Ceil": true, "Copysign": true, "Float32bits": true, "Float32frombits": true,
	"Float64bits": true, "Float64frombits": true, "Floor": true, "Inf": true, "IsInf": true, "IsNaN": true,
	"Max": true, "Min": true, "NaN": true, "Signbit": true, "Sqrt": true, "Trunc": true,
}

// Unit is one type-checked package, for the rules that need types.
type Unit struct {
	Fset  *token.FileSet
	Files []*ast.File
	Info  *types.Info
}

// Check runs the rules on a package that applies log entries. Paths are as the
// file set knows them.
func (u *Unit) Check() []Finding {
	var out []Finding
	for _, f := range u.Files {
		report := func(rule string, at ast.Node, format string, args ...any) {
			p := u.Fset.Position(at.Pos())
			if !allowedIn(u.Fset, f, rule, p.Line) {
				out = append(out, Finding{Path: p.Filename, Line: p.Line, Rule: rule, Msg: fmt.Sprintf(format, args...)})
			}
		}
		u.checkMapOrder(f, report)
		u.checkProducts(f, report)
	}
	return out
}

type reporter func(rule string, at ast.Node, format string, args ...any)

// checkMapOrder finds what depends on the order of a map.
func (u *Unit) checkMapOrder(f *ast.File, report reporter) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if t := u.Info.TypeOf(n.X); t != nil {
				if _, ok := t.Underlying().(*types.Map); ok {
					report("determinism", n, "ranges over a map: its order is random")
				}
			}
		case *ast.CallExpr:
			// slices.Sorted(maps.Keys(m)) has an order.
			return u.fullName(n.Fun) != "slices.Sorted"
		case *ast.SelectorExpr:
			switch name := u.fullName(n); name {
			case "maps.Keys", "maps.Values", "maps.All", "(*sync.Map).Range":
				report("determinism", n, "uses %s: its order is random", name)
			}
		}
		return true
	})
}

// fullName returns the name of the function or method that e selects, or "".
func (u *Unit) fullName(e ast.Expr) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	fn, ok := u.Info.Uses[sel.Sel].(*types.Func)
	if !ok {
		return ""
	}
	return fn.FullName()
}

// checkProducts wants each float product as the argument of a conversion, which
// rounds it: x*y+z may become one instruction with one rounding, and does on
// arm64 and with GOAMD64=v3. The language lets the compiler fuse across
// statements too, so an assignment is no barrier, and *= cannot be written.
func (u *Unit) checkProducts(f *ast.File, report reporter) {
	var stack []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.MUL && u.isFloat(n) && !u.isConstant(n) && !u.isConverted(stack) {
				report("product", n, "a product that may be fused: write float32(a*b)")
			}
		case *ast.AssignStmt:
			if n.Tok == token.MUL_ASSIGN && u.isFloat(n.Lhs[0]) {
				report("product", n, "a product that may be fused: write x = float32(x*y)")
			}
		}
		stack = append(stack, n)
		return true
	})
}

func (u *Unit) isConstant(e ast.Expr) bool { return u.Info.Types[e].Value != nil }

// isFloat reports whether e has a floating-point type, or may have one as a
// type parameter.
func (u *Unit) isFloat(e ast.Expr) bool {
	t := u.Info.TypeOf(e)
	if t == nil {
		return false
	}
	if p, ok := t.(*types.TypeParam); ok {
		return mayBeFloat(p.Constraint())
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsFloat != 0
}

func mayBeFloat(t types.Type) bool {
	switch t := t.Underlying().(type) {
	case *types.Basic:
		return t.Info()&types.IsFloat != 0
	case *types.Interface:
		for i := range t.NumEmbeddeds() {
			if mayBeFloat(t.EmbeddedType(i)) {
				return true
			}
		}
	case *types.Union:
		for i := range t.Len() {
			if mayBeFloat(t.Term(i).Type()) {
				return true
			}
		}
	}
	return false
}

// isConverted reports whether the innermost node of stack, parentheses aside, is
// a conversion to a floating-point type.
func (u *Unit) isConverted(stack []ast.Node) bool {
	for _, n := range slices.Backward(stack) {
		switch n := n.(type) {
		case *ast.ParenExpr:
			continue
		case *ast.CallExpr:
			return u.Info.Types[n.Fun].IsType() && u.isFloat(n.Fun)
		}
		return false
	}
	return false
}
