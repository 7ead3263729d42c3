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
	"net/http"
	"os"
	"regexp"
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
	var ops []string
	zipCmd := &cobra.Command{
		Use:   "zip FILE",
		Short: "Write one file with the state, metrics and profiles of the servers",
		Long: `Write one file with the state, metrics and profiles of the servers, for the search for a fault.

It holds the verdict and the state of the cluster, its map with the shapes of the tables, what each server says of itself,
and, of each port that --ops names (--ops-listen of the servers), metrics, readiness, goroutines, a heap profile, its
configuration and the last lines of its log. It holds no row, no certificate, no private key and no token. manifest.json
lists what could not be had, and why: servers that are down do not stop it.

The exit code is 0 also where something is missing, 4 if no server answered.`,
		Example: `  rowraft debug zip /tmp/rowraft.zip --ops 10.0.0.1:7072,10.0.0.2:7072,10.0.0.3:7072
  rowraft debug zip /tmp/rowraft.zip --timeout 2m`,
		Args: cli.OneArg("the FILE to write, which must not be there yet"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := debugZip(g, cmd, args[0], ops)
			if err != nil {
				return fmt.Errorf("debug zip: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	zipCmd.Flags().StringSliceVar(&ops, "ops", nil,
		"host:port of the servers' --ops-listen, comma-separated; default: no metrics and profiles")
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

// part is one file of the bundle, and the function that fetches it.
type part struct {
	name string
	get  func(context.Context) ([]byte, error)
}

// partPatience bounds one part.
const partPatience = 15 * time.Second

func debugZip(g *remote.Flags, cmd *cobra.Command, file string, ops []string) (v *bundleJSON, err error) {
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
	parts, err := bundleParts(c, reply, ops)
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
	fmt.Fprintf(cmd.ErrOrStderr(), "asking for %s\n", cli.Plural(len(parts), "part"))
	return v, v.write(ctx, out, parts)
}

// write fetches the parts concurrently and writes them in order, the manifest last.
func (v *bundleJSON) write(ctx context.Context, out io.Writer, parts []part) error {
	got, errs := make([][]byte, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, partPatience)
			defer cancel()
			got[i], errs[i] = p.get(ctx)
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
	for i, p := range parts {
		if errs[i] != nil {
			v.Missing = append(v.Missing, missingJSON{p.name, errs[i].Error()})
			continue
		}
		v.Parts = append(v.Parts, p.name)
		if err := add(p.name, got[i]); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(add("manifest.json", raw), z.Close())
}

func asJSON(v any) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }
}

// notInFileName matches the characters that are replaced in file names of the zip.
var notInFileName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// bundleParts returns the parts that the cluster can provide.
func bundleParts(c *remote.Conn, r *rowraftv1.StatusReply, ops []string) ([]part, error) {
	shards, err := view.NewShardList(r, "")
	if err != nil {
		return nil, err
	}
	parts := []part{
		{"cluster/status.json", asJSON(view.NewCluster(r))}, {"cluster/nodes.json", asJSON(view.NewNodeList(r))},
		{"cluster/shards.json", asJSON(shards)},
		{"cluster/operations.json", asJSON(view.NewOperationList(r, true))}, {"cluster/map.json", asJSON(r.GetMap())},
	}
	for _, n := range r.GetMap().GetNodes() {
		conn, err := c.Pool.Get(n.GetAddr())
		if err != nil {
			return nil, err
		}
		name := notInFileName.ReplaceAllString(cmp.Or(n.GetName(), n.GetId()), "_")
		parts = append(parts, part{"servers/" + name + "/status.json", func(ctx context.Context) ([]byte, error) {
			st, err := rowraftv1.NewReplicasClient(conn).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
			if err != nil {
				return nil, err
			}
			return json.MarshalIndent(st, "", "  ")
		}})
	}
	return append(parts, opsParts(c, ops)...), nil
}

// opsParts returns the parts from the ops ports of servers.
func opsParts(c *remote.Conn, ops []string) (parts []part) {
	scheme, transport := "http://", &http.Transport{DisableKeepAlives: true}
	if c.TLS != nil {
		scheme, transport.TLSClientConfig = "https://", c.TLS.Client(certs.Node)
	}
	client := &http.Client{Transport: transport}
	for _, addr := range ops {
		dir := "ops/" + notInFileName.ReplaceAllString(addr, "_") + "/"
		for _, f := range []struct{ name, path string }{{"metrics.txt", "/metrics"}, {"readyz.txt", "/readyz"},
			{"goroutines.txt", "/debug/pprof/goroutine?debug=1"}, {"heap.pb.gz", "/debug/pprof/heap"},
			{"config.yaml", "/debug/config"}, {"log.jsonl", "/debug/log"}} {
			parts = append(parts, part{dir + f.name, func(ctx context.Context) ([]byte, error) {
				return fetch(ctx, client, scheme+addr+f.path)
			}})
		}
	}
	return parts
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
