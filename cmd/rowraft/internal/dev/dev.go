package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/cert"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Names of files in the directory.
const (
	envName  = "env"     // exports for a shell; exists while the servers are ready
	logName  = "dev.log" // output of a process that --detach started
	lockName = "LOCK"    // locked by the process, with its pid
	certsDir = "certs"
)

const (
	defaultDir   = "rowraft-dev"
	startTime    = 3 * time.Minute
	settleTime   = 20 * time.Second
	restartAfter = 5 * time.Second
	endTime      = time.Minute // of servers whose `rowraft dev` was killed
	poll         = 50 * time.Millisecond
)

// dev is the flags of the command.
type dev struct {
	dir     string
	servers int
	port    int
	detach  bool
	stop    bool
}

// NewCmd returns the command `rowraft dev`.
func NewCmd() *cobra.Command {
	var d dev
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run three servers with certificates on this machine, to try and develop with",
		Long: `Start servers n1, n2 and n3 as processes on this machine, with certificates, and run until Ctrl-C. Data,
certificates and logs stay in --dir: the next start continues with them, and removing the directory
removes everything. A server that ends, of kill -9 for example, is started again after 5 s.

DIR/env has the variables for a shell: then every command finds the cluster. No variable that is
exported already has an effect on dev.`,
		Example: `  rowraft dev                                            # in one shell
  . rowraft-dev/env && rowraft cluster status            # in another

  rowraft dev --detach && . rowraft-dev/env              # both in one shell
  rowraft dev --stop`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch dir, err := filepath.Abs(d.dir); {
			case err != nil:
				return err
			case d.servers < 1 || d.servers > 9:
				return cli.Usagef("--servers %d: want 1 to 9", d.servers)
			case d.port < 1 || d.port > 65000:
				return cli.Usagef("--port %d: want 1 to 65000", d.port)
			case d.stop && d.detach:
				return cli.Usagef("--stop and --detach: want one of them")
			default:
				d.dir = dir
			}
			switch {
			case d.stop:
				return d.stopOther(cmd.Context(), cmd.OutOrStdout())
			case d.detach:
				return d.startOther(cmd.Context(), cmd.OutOrStdout())
			}
			return d.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&d.dir, "dir", defaultDir, "directory of data, certificates and logs, which is kept")
	fl.IntVar(&d.servers, "servers", 3, "servers to start, 1 to 9; with fewer than 3 no server may die")
	fl.IntVar(&d.port, "port", 7070, "port of n1; n2 has the next one, and so on; Raft uses the ports from 100 above, "+
		"metrics from 200 above")
	fl.BoolVar(&d.detach, "detach", false, "return when the servers are ready, and leave them running until --stop")
	fl.BoolVar(&d.stop, "stop", false, "stop the servers that run in --dir")
	return cmd
}

func (d *dev) path(name string) string { return filepath.Join(d.dir, name) }

// run starts the servers and returns after they have stopped, when ctx ends.
func (d *dev) run(ctx context.Context, out io.Writer) (err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	lock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(d.path(envName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := d.makeCerts(out); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	c, err := d.start(ready, lock)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.Remove(d.path(envName)), c.Stop())
		fmt.Fprintf(out, "Stopped. Data and certificates are in %s: the next start continues with them.\n", d.dir)
	}()
	d.settle(ready, c)
	if err := os.WriteFile(d.path(envName), []byte(d.exports(c)), 0o600); err != nil {
		return err
	}
	if ctx.Err() == nil { // otherwise Ctrl-C came during the start
		fmt.Fprint(out, d.next(c))
	}
	d.watch(ctx, c, out)
	return nil
}

// makeCerts makes the certificates if they are not there. They come into being at once, so an interrupted start leaves
// nothing that the next one must understand. What is incomplete all the same is kept under another name.
func (d *dev) makeCerts(out io.Writer) error {
	complete := true
	for _, name := range []string{"ca.pem", "server.pem", "server.key", "client.pem", "client.key"} {
		if _, err := os.Stat(d.path(filepath.Join(certsDir, name))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		} else if err != nil {
			complete = false
		}
	}
	if complete {
		return nil
	}
	unfinished := d.path(certsDir + ".new")
	if err := os.RemoveAll(unfinished); err != nil { // of an interrupted start; no process has used it
		return err
	}
	if _, err := cert.MakeLab(unfinished, "dev", []string{"127.0.0.1", "localhost"}, 365*cert.Day); err != nil {
		return err
	}
	if _, err := os.Stat(d.path(certsDir)); err == nil {
		before := d.path(certsDir + time.Now().UTC().Format(".20060102T150405.000Z"))
		if err := os.Rename(d.path(certsDir), before); err != nil {
			return err
		}
		fmt.Fprintf(out, "The certificates in %s were incomplete: there are new ones. The others are in %s.\n",
			d.path(certsDir), before)
	}
	return os.Rename(unfinished, d.path(certsDir))
}

// lock makes this process the only one in the directory. The servers inherit the lock. So if this process is killed,
// the next one waits until they, which end with it, have freed their ports and data directories.
func (d *dev) lock(ctx context.Context) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	for {
		lock, err := vfs.OS.Lock(d.path(lockName))
		if err == nil {
			return lock.(*os.File), nil
		}
		taken, ok := errors.AsType[*vfs.LockedError](err)
		if !ok {
			return nil, err
		}
		pid, err := strconv.Atoi(taken.Owner)
		if err != nil || syscall.Kill(pid, 0) != syscall.ESRCH || ctx.Err() != nil {
			return nil, cli.Hint(fmt.Errorf("servers run in %s already (process %s)", d.dir, taken.Owner),
				"stop them with `rowraft dev --stop`, or choose another --dir and --port")
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
}

func (d *dev) start(ctx context.Context, lock *os.File) (*localcluster.Cluster, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c, err := localcluster.Start(ctx, localcluster.Options{
		Binary: self, Dir: d.dir, Servers: d.servers, Certs: d.path(certsDir), Port: d.port, Inherit: lock,
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, cli.Hint(err, "another process has this port; choose others with --port")
	}
	return c, err
}

// settle waits for the first elections, for up to settleTime: until `rowraft cluster status` calls nothing critical.
func (d *dev) settle(ctx context.Context, c *localcluster.Cluster) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	self, err := os.Executable()
	for err == nil && ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, self, "cluster", "status", "--certs", d.path(certsDir), "--endpoints",
			strings.Join(c.Endpoints(), ","))
		cmd.Env = cli.WithoutFlags(os.Environ())
		if cmd.Run() == nil {
			return
		}
		select {
		case <-time.After(4 * poll):
		case <-ctx.Done():
		}
	}
}

// watch starts servers that have ended again, until ctx ends.
func (d *dev) watch(ctx context.Context, c *localcluster.Cluster, out io.Writer) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	ended := make(map[*localcluster.Server]time.Time)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range c.Servers() {
			switch at, known := ended[s]; {
			case s.Running():
				delete(ended, s)
			case !known:
				ended[s] = time.Now()
				fmt.Fprintf(out, "Server %s has ended; it starts again in %v. Its log: %s\n", s.Name, restartAfter, s.LogFile)
			case time.Since(at) > restartAfter:
				ended[s] = time.Now()
				switch err := c.Restart(ctx, s); {
				case err == nil:
					fmt.Fprintf(out, "Server %s runs again.\n", s.Name)
				case ctx.Err() == nil:
					fmt.Fprintf(out, "Server %s did not start: %v\n", s.Name, err)
				}
			}
		}
	}
}

// exports returns the variables that make commands in a shell find the cluster.
func (d *dev) exports(c *localcluster.Cluster) string {
	all := strings.Join(c.Endpoints(), ",")
	return fmt.Sprintf("export ROWRAFT_CERTS=%s\nexport ROWRAFT_ENDPOINTS=%s\nexport ROWRAFT_JOIN=%s\n",
		quote(d.path(certsDir)), all, all)
}

// quote quotes a path for a shell.
func quote(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

const readyText = "The servers are ready"

// next returns what to type next.
func (d *dev) next(c *localcluster.Cluster) string {
	var b strings.Builder
	for _, s := range c.Servers() {
		fmt.Fprintf(&b, "%s  %s  log %s\n", s.Name, s.Addr, s.LogFile)
	}
	end := "Ctrl-C stops them"
	if os.Getenv(detachedVariable) != "" {
		end = "`rowraft dev --stop` stops them"
		if d.dir != absolute(defaultDir) {
			end = "`rowraft dev --stop --dir " + quote(d.dir) + "` stops them"
		}
	}
	fmt.Fprintf(&b, readyText+"; %s. In every shell that uses them, type\n\n  . %s\n\nand then, for example\n\n"+
		"  rowraft cluster status\n  rowraft-trainer train --generate\n\n", end, quote(d.path(envName)))
	return b.String()
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// detachedVariable is set in the process that --detach starts. No flag has this name.
const detachedVariable = "ROWRAFT_DEV_DETACHED"

// startOther starts this command as a process that outlives this one, and returns when its servers are ready.
func (d *dev) startOther(ctx context.Context, out io.Writer) error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	lock, err := d.lock(ctx) // a process that runs already is an error here, not in the log
	if err != nil {
		return err
	}
	if err := errors.Join(lock.Close(), os.RemoveAll(d.path(envName))); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(d.path(logName), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(self, "dev", "--dir", d.dir, "--servers", strconv.Itoa(d.servers), "--port", strconv.Itoa(d.port))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(cli.WithoutFlags(os.Environ()), detachedVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, err := os.Stat(d.path(envName)); err != nil {
				continue
			}
			text, err := os.ReadFile(d.path(logName))
			if err != nil || !strings.Contains(string(text), readyText) {
				continue // it is printed after the file is there
			}
			_, err = out.Write(text)
			return err
		case err := <-ended:
			text, _ := os.ReadFile(d.path(logName))
			return fmt.Errorf("the servers did not start (%w): %s", err, strings.TrimSpace(string(text)))
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			return cli.ErrInterrupted
		}
	}
}

// stopOther stops the process that runs in the directory.
func (d *dev) stopOther(ctx context.Context, out io.Writer) error {
	if _, err := os.Stat(d.dir); err != nil {
		return cli.Usagef("--dir: %w", err)
	}
	for told := false; ; {
		lock, err := vfs.OS.Lock(d.path(lockName))
		taken, is := errors.AsType[*vfs.LockedError](err)
		switch {
		case err == nil && !told:
			lock.Close()
			return cli.Hint(fmt.Errorf("no servers run in %s", d.dir), "--dir names another directory")
		case err == nil:
			fmt.Fprintf(out, "Stopped. Data and certificates are in %s: the next start continues with them.\n", d.dir)
			return lock.Close()
		case !is:
			return err
		case !told:
			pid, perr := strconv.Atoi(taken.Owner)
			if perr != nil || pid < 2 {
				return fmt.Errorf("%s does not have the process id of `rowraft dev`: %q", d.path(lockName), taken.Owner)
			}
			// Servers without it end by themselves.
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("stop process %d: %w", pid, err)
			}
			told = true
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
