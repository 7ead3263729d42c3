package debug

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/cluster"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// NewCmd returns the command `rowraft debug`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "Collect what helps to find out what is wrong"}
	zipCmd := &cobra.Command{
		Use:   "zip FILE",
		Short: "Write one file with the state, metrics and profiles of the servers",
		Long: `Write one file with the state, metrics and profiles of the servers, for the search for a fault.

It holds the verdict and the state of the cluster, its map with the shapes of the tables, and of each server in the map, in
servers/NAME: its own status and, if it has an ops port (--ops-listen), metrics, readiness, goroutines, a heap
profile, its configuration and the last lines of its log. One endpoint is enough. It holds no row, no certificate, no private
key and no token. manifest.json lists what could not be had, and why; a server that does not answer has a file missing.txt
that says so.

The exit code is 0 also where something is missing, 4 if no server answered.`,
		Example: "  rowraft debug zip /tmp/rowraft.zip --timeout 2m",
		Args:    cli.OneArg("the FILE to write, which must not be there yet"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := debugZip(g, cmd, args[0])
			if err != nil {
				return fmt.Errorf("debug zip: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	cmd.AddCommand(zipCmd)
	return cmd
}

// bundleJSON is the contract of `debug zip -o json`, and manifest.json of the file.
type bundleJSON struct {
	Schema  string        `json:"schema"`
	File    string        `json:"file"`
	Created string        `json:"created"`
	Version string        `json:"version"` // of this binary
	Parts   []string      `json:"parts"`
	Missing []missingJSON `json:"missing"`
}

type missingJSON struct {
	Part string `json:"part"`
	Why  string `json:"why"`
}

func (v *bundleJSON) print(w io.Writer, _ bool) error {
	if _, err := fmt.Fprintf(w, "%s: %s, %d missing\n", v.File, cli.Plural(len(v.Parts), "part"),
		len(v.Missing)); err != nil {
		return err
	}
	for _, m := range v.Missing {
		if _, err := fmt.Fprintf(w, "  missing  %s: %s\n", m.Part, m.Why); err != nil {
			return err
		}
	}
	return nil
}

// part is one file of the bundle, or the reason why it is missing.
type part struct {
	name string
	data []byte
	err  error
}

// source fetches parts.
type source func(context.Context) []part

// patience bounds one source.
const patience = 15 * time.Second

func debugZip(g *remote.Flags, cmd *cobra.Command, file string) (v *bundleJSON, err error) {
	ctx, cancel := g.WithTimeout(cmd)
	defer cancel()
	reply, err := cluster.Status(ctx, g)
	if err != nil {
		return nil, err
	}
	c, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	sources, err := bundleSources(c, reply)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(file))
		}
	}()
	v = &bundleJSON{Schema: cli.JSONSchema, File: file, Created: time.Now().UTC().Format(time.RFC3339), Version: g.Version,
		Parts: []string{}, Missing: []missingJSON{}}
	fmt.Fprintf(cmd.ErrOrStderr(), "asking %s\n", cli.Plural(len(reply.GetMap().GetNodes()), "server"))
	return v, v.write(ctx, out, sources)
}

// write fetches the parts concurrently and writes them in order, the manifest last.
func (v *bundleJSON) write(ctx context.Context, out io.Writer, sources []source) error {
	got := make([][]part, len(sources))
	var wg sync.WaitGroup
	for i, fetch := range sources {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			got[i] = fetch(ctx)
		})
	}
	wg.Wait()
	z := zip.NewWriter(out)
	add := func(name string, b []byte) error {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Now()})
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	for _, p := range slices.Concat(got...) {
		if p.err != nil {
			v.Missing = append(v.Missing, missingJSON{p.name, p.err.Error()})
			continue
		}
		v.Parts = append(v.Parts, p.name)
		if err := add(p.name, p.data); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(add("manifest.json", raw), z.Close())
}

func asJSON(name string, v any) part {
	b, err := json.MarshalIndent(v, "", "  ")
	return part{name, b, err}
}

// notInFileName matches the characters that are replaced in file names of the zip.
var notInFileName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// bundleSources returns the state of the cluster, and a source for each server in its map.
func bundleSources(c *remote.Conn, r *rowraftv1.StatusReply) ([]source, error) {
	shards, err := view.NewShardList(r, "")
	if err != nil {
		return nil, err
	}
	sources := []source{func(context.Context) []part {
		return []part{
			asJSON("cluster/status.json", view.NewCluster(r)), asJSON("cluster/servers.json", view.NewNodeList(r)),
			asJSON("cluster/shards.json", shards), asJSON("cluster/operations.json", view.NewOperationList(r, true)),
			asJSON("cluster/map.json", r.GetMap()),
		}
	}}
	scheme, transport := "http://", &http.Transport{DisableKeepAlives: true}
	if c.TLS != nil {
		scheme, transport.TLSClientConfig = "https://", c.TLS.Client(certs.Server)
	}
	client := &http.Client{Transport: transport}
	for _, n := range r.GetMap().GetNodes() {
		sources = append(sources, func(ctx context.Context) []part { return serverParts(ctx, c, client, scheme, n) })
	}
	return sources, nil
}

// serverParts returns the status that a server reports of itself, and the pages of its ops port.
func serverParts(ctx context.Context, c *remote.Conn, client *http.Client, scheme string, n *rowraftv1.Node) []part {
	name := cmp.Or(n.GetName(), n.GetId())
	dir := "servers/" + notInFileName.ReplaceAllString(name, "_") + "/"
	var st *rowraftv1.NodeStatusReply
	conn, err := c.Pool.Get(n.GetAddr())
	if err == nil {
		st, err = rowraftv1.NewReplicasClient(conn).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	}
	if err != nil {
		text := fmt.Sprintf("At %s server %s at %s did not answer: %v\n", time.Now().UTC().Format(time.RFC3339), name,
			n.GetAddr(), err)
		return []part{{dir + "missing.txt", []byte(text), nil}, {dir + "status.json", nil, err}}
	}
	parts := []part{asJSON(dir+"status.json", st)}
	if st.GetOpsAddr() == "" {
		return append(parts, part{dir + "metrics.txt", nil, errors.New("the server has no ops port (--ops-listen)")})
	}
	ops, err := opsAddr(ctx, st.GetOpsAddr(), n.GetAddr())
	if err != nil {
		return append(parts, part{dir + "metrics.txt", nil, err})
	}
	for _, f := range []struct{ name, path string }{{"metrics.txt", "/metrics"}, {"readyz.txt", "/readyz"},
		{"goroutines.txt", "/debug/pprof/goroutine?debug=1"}, {"heap.pb.gz", "/debug/pprof/heap"},
		{"config.yaml", "/debug/config"}, {"log.jsonl", "/debug/log"}} {
		b, err := fetch(ctx, client, scheme+ops+f.path)
		parts = append(parts, part{dir + f.name, b, err})
	}
	return parts
}

// opsAddr returns the address at which this machine reaches the ops port of a server whose own address is at. A port on
// all addresses is reached there. A loopback port is reached only if the server runs on this machine: it would be the
// port of another server otherwise, or none.
func opsAddr(ctx context.Context, listens, at string) (string, error) {
	host, port, err := net.SplitHostPort(listens)
	ip, perr := netip.ParseAddr(host)
	server, _, aerr := net.SplitHostPort(at)
	switch {
	case err != nil || perr != nil || aerr != nil:
		return listens, nil
	case ip.IsUnspecified():
		return net.JoinHostPort(server, port), nil
	case ip.IsLoopback() && !onThisMachine(ctx, server):
		return "", fmt.Errorf("the ops port listens on %s, which only its own machine reaches: run debug zip there", listens)
	}
	return listens, nil
}

// onThisMachine reports whether a host name or an address is one of this machine.
func onThisMachine(ctx context.Context, host string) bool {
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(ips, func(ip netip.Addr) bool {
		return ip.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			return err == nil && prefix.Addr() == ip.Unmap()
		})
	})
}

// maxPart bounds the bytes of a part.
const maxPart = 64 << 20

func fetch(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(resp.Body, maxPart)); err != nil {
		return nil, err
	}
	// which is how /readyz says no
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(b.Bytes()))
	}
	return b.Bytes(), nil
}
