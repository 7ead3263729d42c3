package tidy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the repository, from this package's directory.
const root = "../.."

func TestRepositoryKeepsItsRules(t *testing.T) {
	repo, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(repo.Files) < 20 {
		t.Fatalf("found %d Go files below %s: not looking at the repository", len(repo.Files), root)
	}
	for _, f := range repo.Check() {
		t.Error(f)
	}
	for _, long := range repo.Long() {
		t.Log(long)
	}
}

// A bad example and, where it is not obvious, the good one beside it.
var examples = []struct {
	name    string
	rule    string
	sources map[string]string
	want    string // part of the one finding; "" if there must be none
}{
	{
		name: "an import that points up", rule: "imports",
		sources: map[string]string{"wire/a.go": imp("wire", Module+"/client")},
		want:    "imports point down",
	},
	{
		name: "an import along a line", rule: "imports",
		sources: map[string]string{"clustermap/a.go": imp("clustermap", Module+"/wire")},
		want:    "never point along a line",
	},
	{
		name: "raftstore imports the state machine", rule: "imports",
		sources: map[string]string{"raftstore/a.go": imp("raftstore", Module+"/shard/rowstore")},
		want:    "opaque bytes",
	},
	{
		name: "not even a test of raftstore may", rule: "imports",
		sources: map[string]string{"raftstore/a_test.go": imp("raftstore", Module+"/shard")},
		want:    "opaque bytes",
	},
	{
		name: "cache imports client", rule: "imports",
		sources: map[string]string{"cache/a.go": imp("cache", Module+"/client")},
		want:    "meet above",
	},
	{
		name: "trainer imports raftstore", rule: "imports",
		sources: map[string]string{"trainer/a.go": imp("trainer", Module+"/raftstore")},
		want:    "through client",
	},
	{
		name: "somebody imports a command", rule: "imports",
		sources: map[string]string{"node/a_test.go": imp("node", Module+"/cmd/rowraft/demo")},
		want:    "nobody imports cmd",
	},
	{
		name: "a command imports its own parts, downward packages and e2e", rule: "imports",
		sources: map[string]string{"cmd/rowraft-chaos/a.go": imp("main", Module+"/cmd/rowraft-chaos/plan",
			Module+"/e2e/nemesis", Module+"/node", Module+"/proto/rowraft/v1")},
	},
	{
		name: "a trainer package imports its sister, a test one above it", rule: "imports",
		sources: map[string]string{
			"trainer/a.go":      imp("trainer", Module+"/trainer/models", Module+"/client", Module),
			"client/a_test.go":  imp("client", Module+"/node"),
			"shard/a.go":        imp("shard", Module+"/shard/rowstore", Module+"/internal/slab"),
			"internal/rpc/a.go": imp("rpc", Module+"/proto/rowraft/v1", "google.golang.org/grpc"),
		},
	},
	{
		name: "a package that ARCHITECTURE.md does not know", rule: "imports",
		sources: map[string]string{"frob/a.go": imp("frob")},
		want:    "no place in the tree",
	},
	{
		name: "the root package uses a library", rule: "imports",
		sources: map[string]string{"a.go": imp("rowraft", "github.com/google/uuid")},
		want:    "standard library only",
	},
	{
		name: "shard imports gRPC", rule: "imports",
		sources: map[string]string{"shard/a.go": imp("shard", "google.golang.org/grpc/codes")},
		want:    "neither proto nor grpc",
	},
	{
		name: "checkpoint reaches proto through another package", rule: "imports",
		sources: map[string]string{
			"checkpoint/a.go":   imp("checkpoint", Module+"/internal/x"),
			"internal/x/a.go":   imp("x", Module+"/internal/x/y"),
			"internal/x/y/a.go": imp("y", "google.golang.org/protobuf/proto"),
		},
		want: "internal/x → internal/x/y → google.golang.org/protobuf/proto",
	},
	{
		name: "generated types beyond the border", rule: "imports",
		sources: map[string]string{"trainer/a.go": imp("trainer", Module+"/proto/rowraft/v1")},
		want:    "convert at the border",
	},
	{
		name: "generated types in raftstore", rule: "imports",
		sources: map[string]string{
			"raftstore/group.go": imp("raftstore", Module+"/proto/rowraft/v1"),
		},
		want: "raftstore/group.go",
	},
	{
		name: "the reference uses the decoder it is to check", rule: "imports",
		sources: map[string]string{
			"e2e/reference/a.go":      imp("reference", Module+"/wire"),
			"e2e/reference/a_test.go": imp("reference", Module+"/wire", Module+"/shard"),
		},
		want: "shares no code",
	},
	{
		name: "gob", rule: "imports",
		sources: map[string]string{"node/a.go": imp("node", "encoding/gob")},
		want:    "gob",
	},
	{
		name: "GoMLX outside its packages", rule: "imports",
		sources: map[string]string{"trainer/a.go": imp("trainer", "github.com/gomlx/gomlx/core/graph")},
		want:    "stays behind",
	},
	{
		name: "the backends that download", rule: "imports",
		sources: map[string]string{"trainer/accel/a.go": imp("accel", "github.com/gomlx/gomlx/backends/default")},
		want:    "downloads",
	},
	{
		name: "the installer that downloads", rule: "imports",
		sources: map[string]string{"trainer/accel/a.go": imp("accel", "github.com/gomlx/go-xla/compute/xla/autoinstall")},
		want:    "downloads",
	},
	{
		name: "raft beside raftstore", rule: "imports",
		sources: map[string]string{"scheduler/a.go": imp("scheduler", "github.com/hashicorp/raft")},
		want:    "opaque to its users",
	},
	{
		name: "no package comment", rule: "packagedoc",
		sources: map[string]string{"wire/a.go": "package wire\n"},
		want:    "no package comment",
	},
	{
		name: "a package comment that does not start with the name", rule: "packagedoc",
		sources: map[string]string{"wire/a.go": "// This turns rows into bytes.\npackage wire\n"},
		want:    "must start with",
	},
	{
		name: "two package comments", rule: "packagedoc",
		sources: map[string]string{"wire/a.go": "// Package wire is a.\npackage wire\n",
			"wire/doc.go": "// Package wire is b.\npackage wire\n"},
		want: "second package comment",
	},
	{
		name: "a package comment outside doc.go", rule: "packagedoc",
		sources: map[string]string{"wire/a.go": "// Package wire is a.\npackage wire\n", "wire/b.go": "package wire\n"},
		want:    "belongs in doc.go",
	},
	{
		name: "a command named as such", rule: "packagedoc",
		sources: map[string]string{"cmd/rowraft/main.go": "// Command rowraft runs a node.\npackage main\n",
			"cmd/rowraft/x.go": "package main\n"},
	},
	{
		name: "a package that is no noun", rule: "packagedoc",
		sources: map[string]string{"node/util/a.go": "// Package util has things.\npackage util\n"},
		want:    "noun",
	},
	{
		name: "a library ends the process", rule: "exit",
		sources: map[string]string{"raftstore/a.go": "package raftstore\nimport \"os\"\nfunc f() { os.Exit(1) }\n"},
		want:    "only a main package ends a process",
	},
	{
		name: "a library logs fatally", rule: "exit",
		sources: map[string]string{"node/a.go": "package node\nimport l \"log\"\nfunc f() { l.Fatalf(\"x\") }\n"},
		want:    "only a main package ends a process",
	},
	{
		name: "a package beside main ends the process", rule: "exit",
		sources: map[string]string{"cmd/rowraft/demo/a.go": "package demo\nimport \"os\"\nfunc f() { os.Exit(1) }\n"},
		want:    "only a main package ends a process",
	},
	{
		name: "a command does", rule: "exit",
		sources: map[string]string{"cmd/rowraft/a.go": "package main\nimport \"os\"\nfunc main() { os.Exit(1) }\n"},
	},
	{
		name: "a command that does not know its version", rule: "version",
		sources: map[string]string{"cmd/rowraft/a.go": "package main\nfunc f() { var version string; _ = version }\n"},
		want:    "no `var version`",
	},
	{
		name: "a command that does", rule: "version",
		sources: map[string]string{"cmd/rowraft/a.go": "package main\n",
			"cmd/rowraft/b.go": "package main\nvar version = \"unknown\"\n"},
	},
	{
		name: "a test sleeps", rule: "sleep",
		sources: map[string]string{"node/a_test.go": "package node\nimport \"time\"\nfunc f() { time.Sleep(1) }\n"},
		want:    "sleeps",
	},
	{
		name: "a test waits by another name", rule: "sleep",
		sources: map[string]string{"node/a_test.go": "package node\nimport \"time\"\nfunc f() { <-time.After(1) }\n"},
		want:    "that is a sleep",
	},
	{
		name: "a timeout, virtual time and the code itself", rule: "sleep",
		sources: map[string]string{
			"node/a_test.go": "package node\nimport \"time\"\n" +
				"func f(c chan int) { select { case <-c: case <-time.After(1): } }\n",
			"node/b_test.go": "package node\nimport (\"time\"; \"testing/synctest\")\n" +
				"func f() { synctest.Test(nil, nil); time.Sleep(1) }\n",
			"node/c.go": "package node\nimport \"time\"\nfunc f() { time.Sleep(1) }\n",
		},
	},
	{
		name: "a forbidden setting of raft", rule: "raftconfig",
		sources: map[string]string{"raftstore/a.go": "package raftstore\nfunc f() { c.RestoreCommittedLogs = true }\n"},
		want:    "can hang",
	},
	{
		name: "what raft calls applied", rule: "raftconfig",
		sources: map[string]string{
			"raftstore/a.go": "package raftstore\nfunc (n *instance) f() uint64 { return n.raft.AppliedIndex() }\n",
		},
		want: "sent to the machine",
	},
	{
		name: "what raft calls contact", rule: "raftconfig",
		sources: map[string]string{"raftstore/a.go": "package raftstore\nfunc f() { raft.LastContact() }\n"},
		want:    "renewed by refusals",
	},
	{
		name: "the transport of one group per server", rule: "imports",
		sources: map[string]string{"raftstore/a.go": imp("raftstore", "github.com/Jille/raft-grpc-transport")},
		want:    "heartbeats behind bulk data",
	},
	{
		name: "a decoder nobody listed", rule: "decoders",
		sources: map[string]string{"node/a.go": "package node\nfunc (n *x) f(b []byte) { json.Unmarshal(b, n) }\n"},
		want:    "node.x.f takes bytes apart",
	},
	{
		name: "integers out of bytes", rule: "decoders",
		sources: map[string]string{
			"node/a.go": "package node\nfunc f(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }\n",
		},
		want: "node.f takes bytes apart",
	},
	{
		name: "a decoder without its target", rule: "decoders",
		sources: map[string]string{
			"wire/a.go":      "package wire\nfunc ParsePart() {}\nfunc ParseSchema() {}\n",
			"wire/a_test.go": "package wire\nfunc FuzzParseSchema(f *testing.F) {}\n",
		},
		want: "FuzzParseEntry does not exist",
	},
	{
		name: "the backend that deadlocks", rule: "backend",
		sources: map[string]string{"trainer/accel/a.go": "package accel\nvar _ = compute.NewWithConfig(\"go\")\n"},
		want:    "deadlocks",
	},
	{
		name: "the same with an option", rule: "backend",
		sources: map[string]string{"trainer/accel/a.go": "package accel\nconst c = \"go:parallelism=2\"\n"},
		want:    "deadlocks",
	},
	{
		name: "the backend in sequence", rule: "backend",
		sources: map[string]string{"trainer/accel/a.go": "package accel\nconst c = \"go:ops_sequential\"\n"},
	},
	{
		name: "a clock in apply", rule: "determinism",
		sources: map[string]string{"shard/a.go": "package shard\nimport \"time\"\nvar now = time.Now\n"},
		want:    "time comes with the entry",
	},
	{
		name: "randomness in apply", rule: "determinism",
		sources: map[string]string{"shard/rowstore/a.go": imp("rowstore", "math/rand/v2")},
		want:    "nothing random",
	},
	{
		name: "a transcendental function", rule: "determinism",
		sources: map[string]string{
			"optim/a.go": "package optim\nimport \"math\"\nfunc f(x float64) float64 { return math.Pow(x, 2) }\n",
		},
		want: "math.Pow",
	},
	{
		name: "a fused operation called by name", rule: "determinism",
		sources: map[string]string{"optim/a.go": "package optim\nfunc f(x, y, z v) v { return x.MulAdd(y, z) }\n"},
		want:    "MulAdd",
	},
	{
		name: "an exact function, a duration, and a clock in a test", rule: "determinism",
		sources: map[string]string{
			"shard/a.go":      "package shard\nimport \"time\"\nconst ttl time.Duration = 24 * time.Hour\n",
			"optim/a.go":      "package optim\nimport \"math\"\nfunc f(x float64) float64 { return math.Sqrt(x) }\n",
			"optim/a_test.go": "package optim\nimport \"time\"\nvar now = time.Now\n",
		},
	},
	{
		name: "a file nobody reads to its end", rule: "size",
		sources: map[string]string{"wire/a.go": "package wire\n" + strings.Repeat("\n", maxLines)},
		want:    "split it",
	},
	{
		name: "a line that no window shows", rule: "size",
		sources: map[string]string{"wire/a.go": "package wire\n\n// " + strings.Repeat("word ", 24) + "\n"},
		want:    "more than 120 characters",
	},
	{
		name: "a wide raw string, a word without end, and a line at the limit", rule: "size",
		sources: map[string]string{"wire/a.go": "package wire\n\nconst a = `" + strings.Repeat("word ", 30) +
			"`\nconst b = \"" +
			strings.Repeat("x", 130) + "\"\n// " + strings.Repeat("ü", 117) + "\n"},
	},
	{
		name: "a package of more lines than a person reads", rule: "size",
		sources: map[string]string{
			"wire/a.go": "package wire\n" + strings.Repeat("\n", 799), "wire/b.go": "package wire\n" + strings.Repeat("\n", 799),
			"wire/c.go": "package wire\n" + strings.Repeat("\n", 799), "wire/d.go": "package wire\n" + strings.Repeat("\n", 799),
			"wire/e.go": "package wire\n" + strings.Repeat("\n", 799), "wire/f.go": "package wire\n" + strings.Repeat("\n", 799),
		},
		want: "package of",
	},
	{
		name: "a type that does everything", rule: "size",
		sources: map[string]string{"wire/a.go": "package wire\n\ntype T struct{}\n" +
			strings.Repeat("func (t *T) f() {}\n", maxMethods+1)},
		want: "type T has more than 42 methods",
	},
	{
		name: "a generated file of any length", rule: "size",
		sources: map[string]string{"wire/a.go": "// Code generated by x. DO NOT EDIT.\n\npackage wire\n" +
			strings.Repeat("\n", maxLines)},
	},
	{
		name: "a key of a log line that nobody else has", rule: "logkeys",
		sources: map[string]string{
			"node/a.go": "package node\nfunc f() { n.log.Info(\"x\", \"shard\", 1, \"mapVersion\", 2) }\n",
		},
		want: "mapVersion",
	},
	{
		name: "the same of a logger that goes on", rule: "logkeys",
		sources: map[string]string{"node/a.go": "package node\nfunc f() { slog.With(\"colour\", 2).Info(\"x\") }\n"},
		want:    "colour",
	},
	{
		name: "keys that all have, values that look like keys, and what is no logger", rule: "logkeys",
		sources: map[string]string{"node/a.go": "package node\nfunc f() { log.Warn(\"x\", \"err\", \"colour\", attr, " +
			"\"shard\", 1); t.Log(1, 2, 3, \"colour\"); b.Info(\"x\", \"colour\", 1) }\n"},
	},
	{
		name: "a node in a text", rule: "words",
		sources: map[string]string{"node/a.go": "package node\nvar err = errors.New(\"two Nodes lead\")\n"},
		want:    `"Nodes": say server`,
	},
	{
		name: "a server in a text, and a node in names, tags and longer words", rule: "words",
		sources: map[string]string{"node/a.go": "package node\nimport \"a/node\"\n" +
			"var err = errors.New(\"a server, inodes\")\nvar file = \"node\"\n" +
			"type t struct { a int `json:\"node\" yaml:\"node\"` }\n"},
	},
	{
		name: "an exception with a reason", rule: "sleep",
		sources: map[string]string{
			"node/a_test.go": "package node\nimport \"time\"\nfunc f() {\n\t//tidy:allow sleep the kernel gives no signal\n" +
				"\ttime.Sleep(1)\n}\n",
		},
	},
	{
		name: "an exception without a reason, or for another rule", rule: "sleep",
		sources: map[string]string{
			"node/a_test.go": "package node\nimport \"time\"\nfunc f() {\n\ttime.Sleep(1) //tidy:allow sleep\n}\n",
		},
		want: "sleeps",
	},
}

// imp is a file that imports packages.
func imp(pkg string, paths ...string) string {
	var b strings.Builder
	b.WriteString("package " + pkg + "\n")
	for _, p := range paths {
		b.WriteString("import _ \"" + p + "\"\n")
	}
	return b.String()
}

func TestRulesCatchBadExamples(t *testing.T) {
	caught := make(map[string]bool)
	for _, tc := range examples {
		t.Run(tc.name, func(t *testing.T) {
			repo, err := Parse(tc.sources)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range repo.Check() {
				if f.Rule == tc.rule {
					got = append(got, f.String())
				}
			}
			switch {
			case tc.want == "" && len(got) != 0:
				t.Errorf("got %q, want nothing found", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)):
				t.Errorf("got %q, want one finding with %q", got, tc.want)
			}
			if tc.want != "" {
				caught[tc.rule] = true
			}
		})
	}
	for _, rule := range Rules {
		if !caught[rule.Name] {
			t.Errorf("rule %s has no bad example", rule.Name)
		}
	}
}

func TestEveryPackageHasALevel(t *testing.T) {
	for dir, want := range map[string]int{
		"": 0, "internal/slab": 1, "proto/rowraft/v1": 1, "internal/rpc": 3, "internal/rpcx": 1,
		"shard": 4, "shard/rowstore": 3, "cmd/rowraft": 7, "trainer/data": 6,
	} {
		if got, ok := level(dir); !ok || got != want {
			t.Errorf("level(%q) = %d, %v, want %d", dir, got, ok, want)
		}
	}
	if l, ok := level("shardx"); ok {
		t.Errorf("level(shardx) = %d, want none", l)
	}
}

func TestVersions(t *testing.T) {
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range CheckGoMod(string(gomod)) {
		t.Error("go.mod:", bad)
	}

	for _, tc := range []struct{ name, old, new, want string }{
		{"a newer raft", "hashicorp/raft v1.7.3", "hashicorp/raft v1.8.0", `raft is "v1.8.0", want v1.7.3`},
		{"an older raft-boltdb", "raft-boltdb/v2 v2.3.1", "raft-boltdb/v2 v2.3.0", "want v2.3.1"},
		{"a pin that went missing", "\tgo.etcd.io/bbolt v1.5.0\n", "", `bbolt is ""`},
		{"a cache of another version", "require (", "require (\n\tgithub.com/dgraph-io/ristretto/v2 v2.1.0",
			"ristretto/v2 is v2.1.0"},
		{"a replaced module", "require (", "replace a.b/c => ../c\n\nrequire (", "replaced module"},
		{"another Go", "\ngo 1.26", "\ngo 1.27", "go line"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := strings.Replace(string(gomod), tc.old, tc.new, 1)
			if changed == string(gomod) {
				t.Fatalf("go.mod has no %q", tc.old)
			}
			got := CheckGoMod(changed)
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("got %q, want one complaint with %q", got, tc.want)
			}
		})
	}
}

func TestEveryDecoderHasACorpus(t *testing.T) {
	for _, bad := range CheckCorpora(root) {
		t.Error(bad)
	}
	if got := CheckCorpora(t.TempDir()); len(got) < 20 {
		t.Errorf("nothing is there and %d corpora are missed", len(got))
	}
}

// GoMLX fails the pointer checks that come with -race.
func TestRaceRunsWithoutPointerChecksOfGoMLX(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "RACE_FLAGS := -gcflags='github.com/gomlx/compute/...=-d=checkptr=0'") ||
		!strings.Contains(string(makefile), "-race $(RACE_FLAGS)") {
		t.Error("make race checks the pointers of github.com/gomlx/compute, whose matrix product of v0.1.6 fails that")
	}
}

// A test that was renamed would run again under the race detector, for minutes.
func TestRaceSkipsTestsThatExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(makefile), "\nRACE_SKIP ?= ")
	list, _, _ := strings.Cut(rest, "\n")
	if !found || len(list) == 0 {
		t.Fatal("the Makefile has no RACE_SKIP")
	}
	var all strings.Builder
	files, err := filepath.Glob(filepath.Join(root, "*", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob(filepath.Join(root, "*", "*", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, deeper...) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	for name := range strings.SplitSeq(list, "|") {
		if prefix, anchored := strings.CutPrefix(name, "^"); anchored && !strings.Contains(all.String(), "\nfunc "+prefix) {
			t.Errorf("RACE_SKIP of the Makefile names %s, and no test begins with that", prefix)
		}
	}
}

func TestNoSharedDataIsCommitted(t *testing.T) {
	t.Run("a copy of a file and a copied row are found", func(t *testing.T) {
		dir := t.TempDir()
		data := "label,a,b\n1,0.25,68fd1e64,80e26c9b\n0,0.5,05db9164,38a947a1\n"
		write(t, filepath.Join(dir, "clicks.csv"), data)
		write(t, filepath.Join(dir, "README.md"), "A page about data, with commas,\nand lines,lines,lines,lines\n")
		fp, err := ReadFingerprints(dir)
		if err != nil {
			t.Fatal(err)
		}
		repo := t.TempDir()
		write(t, filepath.Join(repo, "copy.csv"), data)
		write(t, filepath.Join(repo, "test.go"), "x := `\n\t0,0.5,05db9164,38a947a1\n`")
		write(t, filepath.Join(repo, "own.csv"), "label,a,b\n1,0.75,aaaaaaaa,bbbbbbbb\nand lines,lines,lines,lines\n")
		found, err := fp.FindBelow(repo)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != 2 || !strings.Contains(found[0], "copy.csv is ") ||
			!strings.Contains(found[1], "test.go is a row of") {
			t.Errorf("found %q, want the copy and the row", found)
		}
	})
	t.Run("in this repository", func(t *testing.T) {
		dir := filepath.Join(root, "..", "shared", "data")
		if _, err := os.Stat(dir); err != nil {
			t.Skip("../shared/data is absent: nothing to compare with")
		}
		fp, err := ReadFingerprints(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(fp.files) < 5 || len(fp.rows) < 1000 {
			t.Fatalf("%d files and %d rows in %s: not the data", len(fp.files), len(fp.rows), dir)
		}
		found, err := fp.FindBelow(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			t.Error(f)
		}
	})
}

func write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
