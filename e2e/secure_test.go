package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// certificates makes certificates with `rowraft cert` in a directory of its own.
type certificates struct {
	t   testing.TB
	dir string
}

func newCertificates(t testing.TB, cluster string) *certificates {
	c := &certificates{t, t.TempDir()}
	c.rowraft("ca", "--cluster", cluster)
	return c
}

func (c *certificates) rowraft(args ...string) {
	c.t.Helper()
	p := spawn(c.t, "rowraft", append([]string{"cert"}, append(args, "--dir", c.dir)...)...)
	if code := p.code(c.t, patience); code != 0 {
		c.t.Fatalf("rowraft cert %v: exit code %d: %s", args, code, &p.stderr)
	}
}

// trainer makes a certificate for workers that listen on loopback, and returns the flags that
// show it.
func (c *certificates) trainer(name string) []string {
	c.rowraft("client", "--role", "trainer", "--name", name, "--tables", "kept.*", "--host", "127.0.0.1")
	return c.flags(name)
}

func (c *certificates) flags(name string) []string {
	path := func(file string) string { return filepath.Join(c.dir, file) }
	return []string{"--cert", path(name + ".pem"), "--key", path(name + ".key"), "--cacert", path("ca.pem")}
}

// tls is who connects with a certificate; "": with none.
func (c *certificates) tls(name string) *tls.Config {
	c.t.Helper()
	conf := &tls.Config{RootCAs: x509.NewCertPool()}
	conf.RootCAs.AppendCertsFromPEM(mustRead(c.t, filepath.Join(c.dir, "ca.pem")))
	if name != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, name+".pem"), filepath.Join(c.dir, name+".key"))
		if err != nil {
			c.t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf
}

// ask sends a request for metrics to a port and returns all that comes back; a nil conf is
// plaintext.
func ask(t testing.TB, addr string, conf *tls.Config) (answer string, err error) {
	t.Helper()
	ctx := deadline(t, patience)
	var conn net.Conn
	if conf == nil {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
	} else {
		conn, err = (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(at)
	}
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	b, err := io.ReadAll(conn)
	return string(b), err
}

// TestTrainersSpeakTLS: with certificates, the port on which trainers average, the port of their
// metrics, and the calls that enter and attend a job refuse a caller without the right certificate.
func TestTrainersSpeakTLS(t *testing.T) {
	needBinaries(t)
	lab, other := newCertificates(t, "lab"), newCertificates(t, "lab") // another CA for the same name
	lab.rowraft("server", "--name", "server")
	lab.rowraft("client", "--role", "admin", "--name", "admin")
	lab.rowraft("client", "--role", "reader", "--name", "reader", "--tables", "*")
	mine, strangers := lab.trainer("kept"), other.trainer("kept")
	dir, ports := t.TempDir(), freePorts(t, 4)
	ready := filepath.Join(dir, "ready")
	spawn(t, "rowraft", append(lab.flags("server"), "server", "--with-scheduler", "--servers", "1", "--shards", "1",
		"--data-dir", filepath.Join(dir, "n1"),
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--ready-file", ready, "--profile", "fast",
		"--disk-stall-limit", "60s")...)
	says(t, ready, "}")
	var at struct {
		Addr string `json:"addr"`
	}
	readJSON(t, ready, &at)
	job := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(job, fmt.Appendf(nil, `job: kept
mode: sync
trainers: 2
lease: 1m
steps: 1000000000
batch: 16
evaluate: false
generator: {examples: 0, held: 0, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, bottom: [8], top: [8]}
parameters: [{name: "*", placement: trainers}]
average: {addresses: [%q, %q]}
`, ports[0], ports[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	train := func(rank int, flags ...string) *running {
		return spawn(t, "rowraft-trainer", append([]string{"train", "--config", job, "--endpoints", at.Addr, "--rank",
			fmt.Sprint(rank), "--patience", "1m",
			"--device", "cpu", "--progress", "none", "--metrics-listen", ports[2+rank]}, flags...)...)
	}
	admin := func(ctx context.Context, flags []string, args ...string) (string, error) {
		p := spawn(t, "rowraft", append(append(args, "--endpoints", at.Addr), flags...)...)
		code := p.code(t, patience)
		if code != 0 {
			return "", fmt.Errorf("exit code %d: %s", code, &p.stderr)
		}
		return p.stdout.String(), ctx.Err()
	}
	workers := []*running{train(0, mine...), train(1, mine...)}
	trains := func(beyond uint64) (v struct{ Job jobView }) {
		t.Helper()
		ctx := deadline(t, patience)
		err := poll(ctx, func() error {
			out, err := admin(ctx, lab.flags("admin"), "job", "describe", "kept", "-o", "json")
			if err != nil {
				return err
			}
			v.Job = jobView{}
			if err := json.Unmarshal([]byte(out), &v); err != nil {
				return err
			}
			if _, step := v.Job.member("rank-1"); v.Job.Training != 2 || step < beyond {
				return fmt.Errorf("job kept is %+v", v.Job)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%v; the workers said\n%s%s", err, &workers[0].stderr, &workers[1].stderr)
		}
		return v
	}
	v := trains(5) // in step: their gradients went over the port on which they average
	_, step := v.Job.member("rank-1")

	for who, conf := range map[string]*tls.Config{
		"plaintext": nil, "no certificate": lab.tls(""), "a certificate of another CA": withRoots(other.tls("kept"),
			lab.tls("")), "a reader": lab.tls("reader"), "a server": lab.tls("server"),
	} {
		for i, port := range ports[:2] { // the hub listens, and so does who may become it
			if answer, err := ask(t, port, conf); err == nil && conf != nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("trainer %d averages with %s: %q, %v", i, who, answer, err)
			}
		}
		if conf != nil && len(conf.Certificates) > 0 && who != "a certificate of another CA" {
			continue // the numbers are no secret within the cluster
		}
		if answer, err := ask(t, ports[2], conf); err == nil && conf != nil || strings.Contains(answer, "rowraft_worker_") {
			t.Errorf("the metrics are told to %s: %q", who, answer)
		}
	}
	if _, err := ask(t, ports[0], lab.tls("kept")); err != nil { // it hangs up when it has read that
		t.Errorf("a trainer does not get through to the port on which others average: %v", err)
	}
	if answer, err := ask(t, ports[2], lab.tls("admin")); err != nil ||
		!strings.Contains(answer, `rowraft_worker_steps_total{rank="0",training_job="kept"}`) {
		t.Errorf("the metrics for an admin: %v\n%s", err, answer)
	}

	refused := map[string]*running{
		"a trainer of another CA":  train(0, append(strangers, "--patience", "1s", "--metrics-listen", "")...),
		"a trainer in plaintext":   train(0, "--insecure", "--patience", "1s", "--metrics-listen", ""),
		"a reader who would train": train(0, append(lab.flags("reader"), "--metrics-listen", "")...),
		"a list in plaintext": spawn(t, "rowraft", "job", "list", "--endpoints", at.Addr, "--insecure", "--timeout",
			"1s"),
		"a stop by a stranger": spawn(t, "rowraft", append(strangers, "job", "stop", "kept", "--endpoints", at.Addr,
			"--timeout", "1s")...),
		"a stop by a reader": spawn(t, "rowraft", append(lab.flags("reader"), "job", "stop", "kept", "--endpoints",
			at.Addr)...),
	}
	for who, p := range refused {
		code := p.code(t, patience)
		t.Logf("%s: %d: %s", who, code, strings.TrimSpace(p.stderr.String()))
		if code == 0 || strings.Contains(who, "reader") != strings.Contains(p.stderr.String(), "reader") {
			t.Errorf("%s: exit code %d: %s%s", who, code, &p.stdout, &p.stderr)
		}
	}
	if now := trains(step + 5); now.Job.Generation != v.Job.Generation {
		t.Errorf("after strangers the job is in generation %d, before it was %d", now.Job.Generation, v.Job.Generation)
	}
	if err := poll(deadline(t, patience), func() error {
		out, err := admin(t.Context(), lab.flags("admin"), "job", "stop", "kept")
		if err == nil && !strings.Contains(out, "job kept: stopped") {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	}); err != nil {
		t.Errorf("stop: %v", err)
	}
	for i, p := range workers {
		if code := p.code(t, patience); code != 0 {
			t.Errorf("worker %d: exit code %d:\n%s", i, code, &p.stderr)
		}
	}
}

// withRoots shows the certificate of one CA and believes another.
func withRoots(c, roots *tls.Config) *tls.Config {
	c.RootCAs = roots.RootCAs
	return c
}
