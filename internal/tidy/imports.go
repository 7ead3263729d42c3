package tidy

import (
	"maps"
	"slices"
	"strings"
)

// tree places each directory on a line of ARCHITECTURE.md's picture. The entry
// with the longest matching path counts.
var tree = map[string]int{
	"":        0,
	"cmd":     7,
	"capi":    7,
	"e2e":     7,
	"bench":   7,
	"scripts": 7,

	"trainer": 6,
	"node":    6,

	"scheduler": 5,

	"client":    4,
	"raftstore": 4,
	"shard":     4,

	"shard/rowstore":     3,
	"cache":              3,
	"checkpoint":         3, // and checkpoint/depot
	"internal/rpc":       3,
	"internal/route":     3,
	"internal/tablefile": 3,

	"wire":       2,
	"clustermap": 2,
	"optim":      2,

	"internal/cli":          6, // the command lines stand on it
	"internal/localcluster": 6,

	"proto":    1,
	"internal": 1,
}

// level returns the line of dir, or false if ARCHITECTURE.md does not know it.
func level(dir string) (int, bool) {
	for d := dir; ; {
		if l, ok := tree[d]; ok && (d != "" || dir == "") {
			return l, true
		}
		i := strings.LastIndexByte(d, '/')
		if i < 0 {
			return 0, false
		}
		d = d[:i]
	}
}

// top returns the first element of dir, which names a tree of packages.
func top(dir string) string {
	first, _, _ := strings.Cut(dir, "/")
	return first
}

// local turns an import path into a directory of this module.
func local(importPath string) (dir string, ok bool) {
	if importPath == Module {
		return "", true
	}
	return strings.CutPrefix(importPath, Module+"/")
}

func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// A border keeps a library, or a part of the tree, behind some packages.
type border struct {
	why     string
	library func(importPath string) bool
	inside  func(f *File) bool // files that may import it
}

func under(prefixes ...string) func(string) bool {
	return func(p string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return within(p, prefix) })
	}
}

func filesIn(dirs ...string) func(*File) bool {
	in := under(dirs...)
	return func(f *File) bool { return in(f.Dir) }
}

var borders = []border{
	{
		why: "generated types stop at client, node, scheduler, internal/rpc, internal/route, internal/localcluster, " +
			"cmd, capi and e2e: convert at the border",
		library: under(Module + "/proto"),
		inside: func(f *File) bool {
			return f.Test || filesIn("proto", "client", "node", "scheduler", "internal/rpc", "internal/route",
				"internal/localcluster", "cmd", "capi", "e2e")(f)
		},
	},
	{
		why:     "the reference is the second reading of docs/formats: it shares no code with the first",
		library: under(Module+"/shard", Module+"/checkpoint", Module+"/wire", Module+"/clustermap", Module+"/optim"),
		inside:  func(f *File) bool { return f.Test || !within(f.Dir, "e2e/reference") },
	},
	{
		why:     "gob is no format: its bytes follow the Go types of the day",
		library: under("encoding/gob"),
		inside:  filesIn(),
	},
	{
		why: "this package downloads plugins when it is imported",
		library: func(p string) bool {
			return strings.HasSuffix(p, "/backends/default") || strings.Contains(p+"/", "/autoinstall/")
		},
		inside: filesIn(),
	},
	{
		why:     "GoMLX stays behind trainer/models and trainer/accel",
		library: under("github.com/gomlx"),
		inside:  filesIn("trainer/models", "trainer/accel", "internal/deps"),
	},
	{
		why:     "one group per server, no deadlines, 4 MB messages, heartbeats behind bulk data",
		library: under("github.com/Jille/raft-grpc-transport"),
		inside:  filesIn(),
	},
	{
		why: "files of other programs' formats are read and written in internal/tablefile and trainer/data: parquet-go " +
			"makes a binary 10 MB larger",
		library: under("github.com/parquet-go"),
		inside:  filesIn("internal/tablefile", "trainer/data", "internal/parquetguard"),
	},
	{
		why:     "hashicorp/raft stays behind raftstore: a group is opaque to its users",
		library: under("github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb"),
		inside:  filesIn("raftstore", "internal/deps"),
	},
}

// pure lists the packages that import neither proto nor grpc, not even through
// others: what they compute must not depend on how it travels.
var pure = []string{"shard", "checkpoint", "wire", "clustermap", "optim"}

func isRPC(importPath string) bool {
	return within(importPath, Module+"/proto") || within(importPath, "google.golang.org/grpc") ||
		within(importPath, "google.golang.org/protobuf")
}

func checkImports(r *Repo) []Finding {
	const rule = "imports"
	var out []Finding
	for _, f := range r.Files {
		if f.Dir == "internal/deps" { // pins versions, is never built
			continue
		}
		from, known := level(f.Dir)
		if !known {
			out = append(out, r.finding(rule, f, f.AST.Name,
				"package %s has no place in the tree: add it to ARCHITECTURE.md and to internal/tidy/imports.go", f.Dir))
			continue
		}
		for p, at := range sorted(imports(f)) {
			for _, b := range borders {
				if b.library(p) && !b.inside(f) {
					out = append(out, r.finding(rule, f, at, "imports %s: %s", p, b.why))
				}
			}
			if f.Dir == "" && !f.Test && !isStandard(p) {
				out = append(out, r.finding(rule, f, at, "imports %s: the root package imports the standard library only", p))
			}
			to, ok := local(p)
			if !ok || to == f.Dir {
				continue
			}
			if why := mayNotImport(f, from, to); why != "" {
				out = append(out, r.finding(rule, f, at, "imports %s: %s", p, why))
			}
		}
	}
	return append(out, checkPure(r)...)
}

// mayNotImport says why f, on line from, must not import the directory to.
func mayNotImport(f *File, from int, to string) string {
	line, known := level(to)
	switch {
	case !known:
		return "" // reported where it lies
	case top(f.Dir) == "cmd" && top(to) == "e2e":
		return "" // cmd/rowraft-chaos runs it
	case line == 7 && top(f.Dir) != top(to):
		return "nobody imports cmd, capi, e2e or bench"
	case within(f.Dir, "raftstore") && within(to, "shard"):
		return "raftstore knows no state machine: entries are opaque bytes"
	case within(f.Dir, "cache") && within(to, "client"):
		return "cache and client meet above"
	case within(f.Dir, "trainer") && within(to, "raftstore"):
		return "a trainer talks to a cluster through client"
	case f.Test:
		return "" // a test may stand its package on higher ones
	case line > from:
		return "imports point down"
	case line == from && (f.Dir == "" || top(f.Dir) != top(to)):
		return "imports never point along a line"
	}
	return ""
}

// checkPure follows the imports of the pure packages through the module.
func checkPure(r *Repo) []Finding {
	graph := make(map[string]map[string]bool) // directory → import paths of its non-test files
	first := make(map[string]*File)
	for _, f := range r.Files {
		if f.Test {
			continue
		}
		if graph[f.Dir] == nil {
			graph[f.Dir], first[f.Dir] = make(map[string]bool), f
		}
		for p := range imports(f) {
			graph[f.Dir][p] = true
		}
	}
	// path returns the imports that lead from dir to gRPC, nil if none does.
	seen := make(map[string]bool)
	var path func(dir string) []string
	path = func(dir string) []string {
		if seen[dir] {
			return nil
		}
		seen[dir] = true
		for p := range sorted(graph[dir]) {
			if isRPC(p) {
				return []string{p}
			}
			if to, ok := local(p); ok {
				if rest := path(to); rest != nil {
					return append([]string{to}, rest...)
				}
			}
		}
		return nil
	}
	var out []Finding
	for dir := range sorted(graph) {
		if !under(pure...)(dir) {
			continue
		}
		clear(seen)
		if chain := path(dir); chain != nil {
			f := first[dir]
			out = append(out, r.finding("imports", f, f.AST.Name, "%s must import neither proto nor grpc: %s → %s", dir, dir,
				strings.Join(chain, " → ")))
		}
	}
	return out
}

// sorted ranges over m in the order of its keys.
func sorted[V any](m map[string]V) func(yield func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
