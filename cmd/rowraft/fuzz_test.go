package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/cli"
)

// FuzzServerFile: the configuration file of a server sets flags, or is refused as a
// mistake of the user's with the file's name.
func FuzzServerFile(f *testing.F) {
	f.Add([]byte("data-dir: /x\njoin: [a:1, b:2]\nwith-scheduler: true\nshards: 4\n"))
	f.Add([]byte("shards: many\n"))
	f.Add([]byte("shards: 1\nshards: 2\n"))
	f.Add([]byte("- a\n"))
	f.Add([]byte("join: {a: b}\n"))
	f.Add([]byte("help: true\nconfig: x\n"))
	f.Add([]byte("a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n"))
	f.Add([]byte("? [a, b]\n: c\n"))
	path := filepath.Join(f.TempDir(), "server.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		flags := newServerCmd(&globals{}).Flags()
		var err error
		if n := allocs.Bytes(func() { err = fromFile(flags, path) }); n > 4<<20+4096*uint64(len(text)) {
			t.Errorf("%d bytes made it allocate %d", len(text), n)
		}
		if err != nil && cli.ExitCode(t.Context(), err) != cli.ExitUsage {
			t.Errorf("%v is no mistake of the user's", err)
		}
	})
}
