package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

// version is set by the linker (-X main.version=…) in releases.
var version = ""

type versionJSON struct {
	Schema   string `json:"schema"`
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildVersion() versionJSON {
	v := versionJSON{Schema: cli.JSONSchema, Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" +
		runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	return v
}

// String returns the version for people.
func (v *versionJSON) String() string {
	revision := ""
	if v.Revision != "" {
		revision = " " + v.Revision
	}
	return fmt.Sprintf("%s%s (%s, %s)", v.Version, revision, v.Go, v.Platform)
}

func newVersionCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Example: "  rowraft version -o json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "rowraft %s\n", &v)
				return err
			})
		},
	}
}
