package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestFromEnvironment(t *testing.T) {
	t.Setenv("ROWRAFT_LOG_LEVEL", "debug")
	t.Setenv("ROWRAFT_LISTEN", "from the environment")
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	level, listen := flags.String("log-level", "info", ""), flags.String("listen", "", "")
	shards := flags.Int("shards", 4, "")
	if err := flags.Parse([]string{"--listen", "from the command line"}); err != nil {
		t.Fatal(err)
	}
	if err := FromEnvironment(flags); err != nil {
		t.Fatal(err)
	}
	if *level != "debug" || *listen != "from the command line" || *shards != 4 {
		t.Errorf("log-level %q, listen %q, shards %d, want debug, from the command line, 4", *level, *listen, *shards)
	}

	yes := flags.Bool("yes", false, "")
	t.Setenv("ROWRAFT_YES", "true")
	if err := FromEnvironment(flags); err != nil || *yes {
		t.Errorf("ROWRAFT_YES=true: yes is %v, %v; want a destructive flag from the command line only", *yes, err)
	}

	t.Setenv("ROWRAFT_SHARDS", "many")
	if err := FromEnvironment(flags); err == nil || !strings.Contains(err.Error(), "ROWRAFT_SHARDS") {
		t.Errorf("ROWRAFT_SHARDS=many: %v, want an error that names the variable", err)
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
