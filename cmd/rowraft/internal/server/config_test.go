package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/cli"
)

func TestConfigurationOrder(t *testing.T) {
	t.Setenv("ROWRAFT_NAME", "from-env")
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "name: from-file\nprofile: from-file\njoin: [a:1, b:2]\nlog-backend: from-file\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := NewServerCmd(&remote.Flags{})
	if err := cmd.ParseFlags([]string{"--profile", "from-flag"}); err != nil {
		t.Fatal(err)
	}
	if err := cli.FromEnvironment(cmd, true); err != nil {
		t.Fatal(err)
	}
	if err := fromFile(cmd.Flags(), file); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"name": "from-env", "profile": "from-flag", "log-backend": "from-file",
		"join": "[a:1,b:2]", "log-level": "info"} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

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
		flags := NewServerCmd(&remote.Flags{}).Flags()
		var err error
		if n := allocs.Bytes(func() { err = fromFile(flags, path) }); n > 4<<20+4096*uint64(len(text)) {
			t.Errorf("%d bytes made it allocate %d", len(text), n)
		}
		if err != nil && cli.ExitCode(t.Context(), err) != cli.ExitUsage {
			t.Errorf("%v is no mistake of the user's", err)
		}
	})
}
