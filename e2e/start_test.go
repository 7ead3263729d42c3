package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// freePorts returns addresses of loopback that stay free for the processes of the test.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var out []string
	for range n {
		p, err := localcluster.ReservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Release() })
		out = append(out, p.Addr)
	}
	return out
}

// portOf is the port of host:port.
func portOf(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// roleEnv is an environment for a process of a three-role start, with nothing of
// this one's that could decide its role. The disk and the cores of a test machine are shared: a leader must
// not give up over them.
func roleEnv(env string) []string {
	clean := slices.DeleteFunc(cli.WithoutFlags(os.Environ()), func(v string) bool {
		return strings.HasPrefix(v, "MS_") || strings.HasPrefix(v, "PADDLE_") || strings.HasPrefix(v, "TRAINING_ROLE=") ||
			strings.HasPrefix(v, "POD_IP=")
	})
	return append(append(clean, "ROWRAFT_DISK_STALL_LIMIT=60s", "ROWRAFT_PROFILE=default"), strings.Fields(env)...)
}

// spawnRole starts a process of a three-role start.
func spawnRole(t testing.TB, binary, env string, args ...string) *running {
	t.Helper()
	return spawnEnv(t, roleEnv(env), binary, append([]string{"start"}, args...)...)
}

// says waits until a file has a text.
func says(t testing.TB, file, text string) {
	t.Helper()
	err := poll(deadline(t, patience), func() error {
		b, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(b), text) {
			err = fmt.Errorf("%s does not say %q:\n%s", file, text, b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The example scripts run as they are, workers first; the second run of MindSpore's is a restart
// of the whole cluster on its data.
func TestThreeRoleScripts(t *testing.T) {
	needBinaries(t)
	run := func(t *testing.T, script, dir, env string) string {
		t.Helper()
		path := "PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")
		p := spawnScript(t, append(roleEnv(env), path, "DIR="+dir, "ROWRAFT_DEVICE=cpu"),
			filepath.Join("examples", "three-roles", script))
		if code := p.code(t, patience); code != 0 {
			t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
		}
		return p.stdout.String()
	}
	t.Run("MindSpore's", func(t *testing.T) {
		dir := t.TempDir()
		port := portOf(t, freePorts(t, 1)[0])
		for round := range 2 {
			out := run(t, "mindspore.sh", dir, "MS_SCHED_PORT="+port)
			if !strings.Contains(out, "epoch: 0, step: 10, loss is ") {
				t.Errorf("round %d: no line of a step:\n%s", round, out)
			}
			// In the second round both had a rank in the first.
			if b := mustRead(t, filepath.Join(dir, "sched.log")); strings.Contains(string(b),
				"old rank id: -1") != (round == 0) {
				t.Errorf("round %d: the old ranks are wrong:\n%s", round, b)
			}
			for file, lines := range map[string][]string{
				"sched.log": {"Server listening on 127.0.0.1:" + port, "Bind to role=scheduler",
					"the scheduler is connected to 2 workers and 2 servers",
					"Assign rank id of node id: worker_0, role: MS_WORKER, with host ip: 127.0.0.1, old rank id: ", "new rank id: 0",
					"new rank id: 1"},
				"server_0.log": {"Server listening on 127.0.0.1:", "Bind to role=server", "Cluster is successfully initialized.",
					"DATA IS NOT SAFE: 2 server(s)"},
				"worker_0.log": {"Bind to role=worker", "Cluster is successfully initialized."},
			} {
				for _, line := range lines {
					says(t, filepath.Join(dir, file), line)
				}
			}
		}
	})
	t.Run("Paddle's", func(t *testing.T) {
		dir := t.TempDir()
		out := run(t, "paddle.sh", dir, "PADDLE_PSERVERS_IP_PORT_LIST="+strings.Join(freePorts(t, 3), ","))
		if !strings.Contains(out, "epoch: 0, step: 10, loss is ") {
			t.Errorf("no line of a step:\n%s", out)
		}
		says(t, filepath.Join(dir, "trainer_0.log"), "Cluster is successfully initialized.")
	})
}

// One server and the workers that come before it; one server, one worker and one scheduler more
// than expected are refused.
func TestAStartTakesTheExpectedNumbers(t *testing.T) {
	needBinaries(t)
	dir := t.TempDir()
	addr := freePorts(t, 1)[0]
	env := "MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=" + portOf(t, addr) +
		" MS_SERVER_NUM=1 MS_WORKER_NUM=2 ROWRAFT_INSECURE=true ROWRAFT_DISK_STALL_LIMIT=60s MS_RECOVERY_PATH=" + dir + " "
	job := filepath.Join("examples", "three-roles", "job.yaml")
	worker := func(name string, more ...string) *running {
		return spawnRole(t, "rowraft-trainer", env+"MS_ROLE=MS_WORKER MS_NODE_ID="+name,
			append([]string{"--config", job, "--no-eval", "--steps", "1000000", "--device", "cpu", "--progress-file",
				filepath.Join(dir, name)}, more...)...)
	}
	refused := func(what string, p *running, code int, says string) {
		t.Helper()
		if got := p.code(t, patience); got != code || !strings.Contains(p.stderr.String(), says) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", what, got, code, says, &p.stderr)
		}
	}
	a := worker("a")
	spawnRole(t, "rowraft", env+"MS_ROLE=MS_SCHED", "--ready-file", filepath.Join(dir, "sched-ready"))
	spawnRole(t, "rowraft", env+"MS_ROLE=MS_PSERVER", "--ready-file", filepath.Join(dir, "server-ready"))
	says(t, filepath.Join(dir, "sched-ready"), addr)
	says(t, filepath.Join(dir, "server-ready"), "server_id")
	refused("a second server", spawnRole(t, "rowraft", env+"MS_ROLE=MS_PSERVER"), 2,
		"is one too many: the cluster was started for 1")
	refused("a second scheduler", spawnRole(t, "rowraft", env+"MS_ROLE=MS_SCHED"), 2, "is used by another process")
	refused("a worker of other numbers", worker("c", "--workers", "3"), 2,
		"expects 3 workers, the scheduler was started for 2")
	refused("a worker that waits for others in vain", givesUp(t, func(timeout string) *running {
		return worker("b", "--start-timeout", timeout, "--job", "lonely")
	},
		"the cluster has not started within", "does not say who is there"), 4, "1 of 2 workers are here: [b]")
	select {
	case <-a.ended:
		t.Errorf("a worker trained before all were there:\n%s%s", &a.stdout, &a.stderr)
	default:
	}
	// Of two for one place one is refused, and the other trains until it is told to stop.
	late := []*running{worker("b"), worker("d")}
	out := 0
	select {
	case <-late[0].ended:
	case <-late[1].ended:
		out = 1
	case <-time.After(patience):
		t.Fatal("no worker was refused")
	}
	refused("a third worker", late[out], 2, "has all of its 2 workers")
	says(t, filepath.Join(dir, "a"), "epoch: 0, step: 10, loss is ")
	says(t, filepath.Join(dir, []string{"d", "b"}[out]), "epoch: 0, step: 10, loss is ")
	for _, p := range []*running{a, late[1-out]} {
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if code := p.code(t, patience); code != 130 {
			t.Errorf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
		}
	}
}

// givesUp starts a process that gives up after a time, and again with more of it as long as it says that it has not
// come so far: a process may stand still for seconds.
func givesUp(t testing.TB, start func(timeout string) *running, notSoFar ...string) (p *running) {
	t.Helper()
	for _, timeout := range []string{"5s", "20s", "1m0s", "3m0s"} {
		p = start(timeout)
		p.code(t, patience)
		if !slices.ContainsFunc(notSoFar, func(s string) bool { return strings.Contains(p.stderr.String(), s) }) {
			break
		}
		t.Logf("again, with more time than %s: %s", timeout, &p.stderr)
	}
	return p
}
