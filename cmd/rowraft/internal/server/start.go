package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/launch"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/vfs"
)

// defaultStartTimeout bounds how long a starting process waits for the other processes of the cluster.
const defaultStartTimeout = 10 * time.Minute

// startFlags are the flags of `rowraft start`.
type startFlags struct {
	serverFlags
	values   launch.Values
	host     string
	dataRoot string
}

// NewStartCmd returns the command `rowraft start`.
func NewStartCmd(g *remote.Flags) *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Run a server or the scheduler, whichever the environment asks for",
		Long: `Run a server or the scheduler of a cluster whose processes get their roles from environment variables, as the scripts of
other parameter servers set them. Start them in any order; workers are started with ` + "`rowraft-trainer start`" + `.

MindSpore's: MS_ROLE (MS_SCHED, MS_PSERVER), MS_SCHED_HOST, MS_SCHED_PORT, MS_SERVER_NUM, MS_WORKER_NUM; MS_NODE_ID, MS_WORKER_IP
and MS_RECOVERY_PATH if they are set. Paddle's: TRAINING_ROLE (PSERVER), PADDLE_PSERVERS_IP_PORT_LIST, POD_IP, PADDLE_PORT; there the
scheduler lives in the first three of the listed servers, by name.

A flag wins over its ROWRAFT_ variable, that over those variables, and they over --config.`,
		Example: `  MS_ROLE=MS_SCHED   MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=8118 MS_SERVER_NUM=1 MS_WORKER_NUM=1 rowraft start --insecure
  MS_ROLE=MS_PSERVER MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=8118 MS_SERVER_NUM=1 MS_WORKER_NUM=1 rowraft start --insecure

  TRAINING_ROLE=PSERVER PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:6174 POD_IP=127.0.0.1 PADDLE_PORT=6174 rowraft start --insecure`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.command(cmd, g) },
	}
	fl := cmd.Flags()
	f.processFlags(fl)
	own := map[string]string{
		"listen":      "host:port of the gRPC services; default: as the environment says, or a free port",
		"peer-listen": "host:port of the Raft groups; default: a free port of the same address",
		"data-dir":    "directory of this process's data; default: one of its own in --data-root",
	}
	for name, usage := range own {
		fl.Lookup(name).Usage, fl.Lookup(name).DefValue = usage, ""
	}
	f.listen, f.peerListen = "", ""
	fl.StringVar(&f.values.Role, launch.FlagRole, "", "scheduler or server; MS_ROLE, TRAINING_ROLE")
	fl.StringVar(&f.values.Scheduler, launch.FlagScheduler, "",
		"host:port of the scheduler; MS_SCHED_HOST and MS_SCHED_PORT")
	fl.StringSliceVar(&f.values.ServerList, launch.FlagServerList, nil,
		"host:port of every server, where there is no process of the scheduler; PADDLE_PSERVERS_IP_PORT_LIST")
	fl.IntVar(&f.values.Servers, launch.FlagServers, 0,
		"servers of the cluster: it starts when they are there, and takes no more; MS_SERVER_NUM")
	fl.IntVar(&f.values.Workers, launch.FlagWorkers, 0, "workers of the job; MS_WORKER_NUM, PADDLE_TRAINERS_NUM")
	fl.StringVar(&f.host, launch.FlagHost, "",
		"address of this machine that a server listens at; default: that from which it reaches the scheduler; MS_WORKER_IP")
	fl.StringVar(&f.dataRoot, launch.FlagDataRoot, "rowraft-data", "where a process without --data-dir has its "+
		"directory: scheduler, the name, or server-0, server-1 … ; MS_RECOVERY_PATH")
	fl.DurationVar(&f.startTimeout, "start-timeout", defaultStartTimeout,
		"how long to wait for the others; then the process ends with exit code 4")
	return cmd
}

func (f *startFlags) command(cmd *cobra.Command, g *remote.Flags) error {
	if err := f.fromFrameworks(cmd.Flags(), cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := f.configure(cmd, g); err != nil {
		return err
	}
	f.values.Rank, f.values.Listen = -1, f.listen
	p, err := f.values.Plan()
	if err != nil {
		return cli.Usagef("%w", err)
	}
	if p.Role == launch.Worker {
		return cli.Hint(cli.Usagef("this process is a worker: `rowraft start` runs servers and the scheduler"),
			"start workers with `rowraft-trainer start --config job.yaml`")
	}
	if f.startTimeout <= 0 {
		return cli.Usagef("--start-timeout %v: want > 0", f.startTimeout)
	}
	if g.Insecure != g.TLS.IsZero() {
		return cli.Usagef("give either --cert, --key and --cacert, or --insecure for plaintext on loopback")
	}
	if f.logFormat == "auto" {
		f.logFormat = "text"
	}
	release, err := f.arrange(&p, g)
	if err != nil {
		return err
	}
	defer release()
	f.effective = configPage(cmd.Flags())
	logger, err := f.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	logger.Info(fmt.Sprintf("Bind to role=%s, ip=%s, data=%s", p.Role, f.listen, f.dataDir), "servers", p.Servers,
		"workers", p.Workers)
	if n := p.Replicas(); n > 0 && n < 3 {
		logger.Info( // the scheduler warns when it makes the shards
			fmt.Sprintf("DATA IS NOT SAFE: %d server(s) hold %d replica(s) of each row; with 3 servers a machine may die",
				p.Servers, n))
	}
	return f.run(cmd.Context(), g, cmd.ErrOrStderr())
}

// fromFrameworks sets flags from the environment variables of training frameworks. It skips the flags that were given.
func (f *startFlags) fromFrameworks(flags *pflag.FlagSet, stderr io.Writer) error {
	env, err := launch.Read(os.LookupEnv)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	for _, w := range env.Warnings {
		fmt.Fprintln(stderr, "rowraft: warning:", w)
	}
	f.values.Variables = make(map[string]string)
	for _, s := range env.Settings {
		if fl := flags.Lookup(s.Flag); fl == nil || fl.Changed {
			continue
		}
		f.values.Variables[s.Flag] = s.Variable
		if err := flags.Set(s.Flag, s.Value); err != nil {
			return cli.Usagef("%s: %w", s.Variable, err)
		}
	}
	return nil
}

// arrange sets the flags of a server. The caller calls release when the process ends.
func (f *startFlags) arrange(p *launch.Plan, g *remote.Flags) (release func(), err error) {
	f.servers, f.workers, f.exact = p.Servers, p.Workers, true
	switch {
	case p.Role == launch.Scheduler:
		f.schedulerOnly = true
	case len(p.ServerList) > 0:
		f.join = p.Founders()
		for _, a := range f.join {
			f.withScheduler = f.withScheduler || a == p.Listen
		}
	default:
		f.join = []string{p.Scheduler}
	}
	f.listen = p.Listen
	if f.listen == "" {
		if f.host == "" {
			f.host = launch.HostTowards(p.Scheduler)
		}
		f.listen = net.JoinHostPort(f.host, "0")
	}
	if f.peerListen == "" {
		host, _, err := net.SplitHostPort(f.listen)
		if err != nil {
			return nil, cli.Usagef("--listen %q: want host:port", f.listen)
		}
		f.peerListen = net.JoinHostPort(host, "0")
	}
	if g.Insecure {
		addr, err := net.ResolveTCPAddr("tcp", f.listen)
		if err != nil {
			return nil, cli.Usagef("%s: %w", f.listen, err)
		}
		if err := rpc.CheckInsecure(addr); err != nil {
			return nil, err
		}
	}
	if f.dataDir != "" {
		return func() {}, nil
	}
	return f.chooseDir(p)
}

// maxDirs bounds the servers on a machine that share a root directory.
const maxDirs = 64

// chooseDir chooses a directory below the root, so that the same process chooses the same one after a restart. A server
// without a name uses the first directory that no other process uses. That is correct for any server, because the
// identity of the server is in the directory.
func (f *startFlags) chooseDir(p *launch.Plan) (release func(), err error) {
	names := []string{launch.Scheduler}
	switch {
	case p.Role == launch.Scheduler:
	case f.name != "":
		names = []string{f.name}
	case len(p.ServerList) > 0:
		names = []string{"server-" + strings.NewReplacer(":", "-", "[", "", "]", "").Replace(p.Listen)}
	default:
		names = nil
		for i := range maxDirs {
			names = append(names, fmt.Sprintf("server-%d", i))
		}
	}
	if strings.ContainsAny(names[0], `/\`) || names[0] == "." || names[0] == ".." {
		return nil, cli.Usagef("--name %q cannot name a directory: give --data-dir", names[0])
	}
	if err := vfs.MkdirAll(vfs.OS, f.dataRoot); err != nil {
		return nil, fmt.Errorf("--%s: %w", launch.FlagDataRoot, err)
	}
	for _, name := range names {
		f.dataDir = filepath.Join(f.dataRoot, name)
		lock, err := vfs.OS.Lock(f.dataDir + ".lock")
		if _, taken := errors.AsType[*vfs.LockedError](err); taken {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", launch.FlagDataRoot, err)
		}
		return func() { _ = lock.Close() }, nil
	}
	return nil, cli.Usagef("%s below %s is used by another process: give --data-dir", names[len(names)-1], f.dataRoot)
}
