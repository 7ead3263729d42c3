package remote

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
)

// Flags are the flags of every command.
type Flags struct {
	Endpoints []string
	Output    string
	Timeout   time.Duration
	TLS       rpc.TLSFiles
	Insecure  bool
	Certs     string // directory of a lab's certificates

	Version string         // of this binary
	Exit    func(code int) // ends the process at once; os.Exit

	// Limits that no flag sets. Tests with servers that are suspended set others.
	AskLimit        time.Duration // of a call to one server
	LeaderLimit     time.Duration // of the search for the scheduler's leader, before each server is asked itself
	CompletionLimit time.Duration // of the completion of one name
}

// NewFlags returns the flags of a binary of this version, with their default limits. exit ends the process.
func NewFlags(version string, exit func(code int)) *Flags {
	return &Flags{Version: version, Exit: exit, AskLimit: route.AskLimit, LeaderLimit: 5 * time.Second,
		CompletionLimit: 2 * time.Second}
}

// Defaults of --endpoints, which is also that of a server's --listen, and of --timeout.
const (
	DefaultEndpoint = "127.0.0.1:7070"
	DefaultTimeout  = 30 * time.Second
)

// WithTimeout returns the context of one short command.
func (g *Flags) WithTimeout(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), g.Timeout)
}

// WithProgressTimeout returns a context for long work. It ends if moved is not called for --timeout.
func (g *Flags) WithProgressTimeout(cmd *cobra.Command) (ctx context.Context, moved, stop func()) {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	t := time.AfterFunc(g.Timeout, func() {
		cancel(rowraft.Errorf(rowraft.CodeDeadline, "no progress for %v", g.Timeout))
	})
	return ctx, func() { t.Reset(g.Timeout) }, func() { t.Stop(); cancel(nil) }
}

// NewMeter counts the bytes of the phase what.
func (g *Flags) NewMeter(cmd *cobra.Command, what string) *terminal.Meter {
	return terminal.NewMeter(cmd.ErrOrStderr(), what, g.Output == cli.FormatJSON)
}

// UseCerts sets the paths of the certificate files in the directory --certs: those of a server, or of a client.
func (g *Flags) UseCerts(cmd *cobra.Command) error {
	if needsNoCertificate(cmd) {
		return nil
	}
	name := "client"
	if Serves(cmd) {
		name = "server"
	}
	return g.useCerts(name, cli.Origin(cmd.Flags(), "certs"))
}

// UseCertsOf sets the paths of the certificate files of one name below --certs, if --certs was given.
func (g *Flags) UseCertsOf(name string) error { return g.useCerts(name, "--certs") }

// useCerts is UseCertsOf; messages say that origin gave the directory.
func (g *Flags) useCerts(name, origin string) error {
	if g.Certs == "" {
		return nil
	}
	files := rpc.TLSFiles{Cert: filepath.Join(g.Certs, name+".pem"), Key: filepath.Join(g.Certs, name+".key"),
		CA: filepath.Join(g.Certs, "ca.pem")}
	if !g.TLS.IsZero() && g.TLS != files || g.Insecure {
		return cli.Usagef("%s together with --cert, --key, --cacert or --insecure: want one of them", origin)
	}
	g.TLS = files
	if _, err := os.Stat(g.TLS.Cert); err != nil && name != "server" { // a server may receive it later
		return cli.Hint(cli.Usagef("%s: %w", origin, err),
			"`rowraft cert lab --dir "+g.Certs+"` makes the certificates for a cluster on this machine")
	}
	return nil
}

// needsNoCertificate reports whether a command calls no server or creates certificates.
func needsNoCertificate(cmd *cobra.Command) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(cmd.CommandPath(), "rowraft "), " ")
	switch top {
	case "cert", "demo", "dev", "version", "help", "completion", "log":
		return true
	}
	return false
}

// StartsItsOwn reports whether a command starts a cluster of its own and talks to no other.
func StartsItsOwn(cmd *cobra.Command) bool {
	switch strings.TrimPrefix(cmd.CommandPath(), "rowraft ") {
	case "demo", "dev":
		return true
	}
	return false
}

// Serves reports whether a command runs a server or scheduler.
func Serves(cmd *cobra.Command) bool {
	switch strings.TrimPrefix(cmd.CommandPath(), "rowraft ") {
	case "server", "scheduler", "start":
		return true
	}
	return false
}

// PollInterval is how often a command that waits for a move or an operation asks for its state.
const PollInterval = 200 * time.Millisecond
