package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// newEnvCommand returns a command `up` with flags of its own below a root with those of the connection.
func newEnvCommand(args ...string) *cobra.Command {
	root, up := &cobra.Command{Use: "root"}, &cobra.Command{Use: "up", Run: func(*cobra.Command, []string) {}}
	root.AddCommand(up)
	f := root.PersistentFlags()
	for _, name := range []string{"certs", "cert", "key", "cacert", "endpoints"} {
		f.String(name, "", "")
	}
	f.Bool("insecure", false, "")
	ExclusiveSecurity(f)
	up.Flags().String("listen", "", "")
	up.Flags().Int("shards", 4, "")
	up.Flags().Bool("yes", false, "")
	root.SetArgs(append([]string{"up"}, args...))
	return up
}

// TestFromEnvironment: a flag wins over the variables that conflict with it, and messages name the variables.
func TestFromEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name, args, env string
		runs            bool
		want            string // the flags that are set, or the error
		fails           bool
	}{
		{name: "a flag and its variable", args: "--listen a:1", env: "LISTEN=b:2 SHARDS=7", runs: true,
			want: "listen=a:1 shards=7"},
		{name: "an action's own flags", env: "LISTEN=b:2 SHARDS=many ENDPOINTS=c:3", want: "endpoints=c:3"},
		{name: "what destroys", env: "YES=true ENDPOINTS=c:3", runs: true, want: "endpoints=c:3"},
		{name: "plaintext over certificates", args: "--insecure", env: "CERTS=/lab", want: "insecure=true"},
		{name: "plaintext over three files", args: "--insecure", env: "CERT=a KEY=b CACERT=c", want: "insecure=true"},
		{name: "certificates over plaintext", args: "--certs /x", env: "INSECURE=true", want: "certs=/x"},
		{name: "files over a directory", args: "--cert x", env: "CERTS=/lab KEY=y", want: "cert=x key=y"},
		{name: "a flag that is off", args: "--insecure=false", env: "CERTS=/lab", want: "certs=/lab insecure=false"},
		{name: "a variable that is off", env: "CERTS=/lab INSECURE=false", want: "certs=/lab insecure=false"},
		{name: "two variables", env: "CERTS=/lab INSECURE=1", want: "ROWRAFT_CERTS and ROWRAFT_INSECURE", fails: true},
		{name: "a bad value", env: "SHARDS=many", runs: true, want: `ROWRAFT_SHARDS="many"`, fails: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, v := range strings.Fields(tc.env) {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(envPrefix+name, value)
			}
			cmd := newEnvCommand(strings.Fields(tc.args)...)
			var got []string
			cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return FromEnvironment(cmd, tc.runs) }
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			if err := cmd.Root().Execute(); err != nil {
				if !tc.fails || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("%v, want %q (error: %v)", err, tc.want, tc.fails)
				}
				return
			}
			for _, name := range []string{"cert", "certs", "endpoints", "insecure", "key", "listen", "shards", "yes"} {
				if f := cmd.Flags().Lookup(name); f.Changed {
					got = append(got, name+"="+f.Value.String())
				}
			}
			if strings.Join(got, " ") != tc.want || tc.fails {
				t.Errorf("set: %s, want %s (error: %v)", got, tc.want, tc.fails)
			}
		})
	}
}

func TestOriginNamesTheVariable(t *testing.T) {
	t.Setenv("ROWRAFT_CERTS", "/lab")
	cmd := newEnvCommand("--endpoints", "a:1")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return FromEnvironment(cmd, false) }
	if err := cmd.Root().Execute(); err != nil {
		t.Fatal(err)
	}
	if c, e := Origin(cmd.Flags(), "certs"), Origin(cmd.Flags(), "endpoints"); c != "ROWRAFT_CERTS" || e != "--endpoints" {
		t.Errorf("certs by %s, endpoints by %s", c, e)
	}
}

func TestWithoutFlags(t *testing.T) {
	got := WithoutFlags([]string{"HOME=/root", "ROWRAFT_JOIN=a:1", "ROWRAFT_PJRT_PLUGIN=/x.so", "ROWRAFT_TARDY_SEED=1",
		"ROWRAFTX=1"})
	if want := []string{"HOME=/root", "ROWRAFT_PJRT_PLUGIN=/x.so", "ROWRAFT_TARDY_SEED=1",
		"ROWRAFTX=1"}; !slices.Equal(got, want) {
		t.Errorf("WithoutFlags = %q, want %q", got, want)
	}
}
