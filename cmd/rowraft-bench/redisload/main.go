package redisload

import (
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
)

type config struct {
	addr     string
	rows     int
	batch    int
	value    int
	conns    int
	depth    int
	wait     int
	replicas int
	pid      int
	warmup   time.Duration
	duration time.Duration
	seed     uint64
}

// NewCommand returns the command redis.
func NewCommand() *cobra.Command {
	var c config
	var seconds, warmup float64
	cmd := &cobra.Command{
		Use:   "redis",
		Short: "Drive a Redis server with the same unit of work",
		Long: `Drive a Redis server with the unit of work that pull and push have. bench/peers/compare.sh starts the
servers and measures both in turns.`,
	}
	action := func(use, short string, do func(cmd *cobra.Command) error) {
		cmd.AddCommand(&cobra.Command{
			Use: use, Short: short, Args: cli.NoArgs,
			Example: "  rowraft-bench redis " + use + " --addr 127.0.0.1:6379",
			RunE: func(cmd *cobra.Command, _ []string) error {
				c.duration = time.Duration(seconds * float64(time.Second))
				c.warmup = time.Duration(warmup * float64(time.Second))
				if c.batch < 1 || c.batch > c.rows || c.conns < 1 || c.depth < 1 {
					return cli.Usagef("want 1 ≤ batch ≤ rows and at least one connection and call in flight")
				}
				return do(cmd)
			},
		})
	}
	measure := func(cmd *cobra.Command) error {
		result, err := load(cmd.Context(), c, cmd.Name())
		if err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	action("fill", "Set all keys", func(*cobra.Command) error { return fill(c) })
	action("mget", "Measure MGET; prints one JSON object", measure)
	action("mset", "Measure MSET, each followed by WAIT if --wait asks for it; prints one JSON object", measure)
	action("ready", "Wait until the server and its replicas are in step",
		func(cmd *cobra.Command) error { return ready(cmd.Context(), c) })
	action("freeport", "Print a port that no process listens on", func(cmd *cobra.Command) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), l.Addr().(*net.TCPAddr).Port)
		return l.Close()
	})
	fl := cmd.PersistentFlags()
	fl.StringVar(&c.addr, "addr", "127.0.0.1:6379", "host:port of the server")
	fl.IntVar(&c.rows, "rows", 1_000_000, "keys in the server")
	fl.IntVar(&c.batch, "batch", 8192, "different keys per call")
	fl.IntVar(&c.value, "value", 64, "bytes per value")
	fl.IntVar(&c.conns, "conns", 4, "connections")
	fl.IntVar(&c.depth, "depth", 2, "calls in flight per connection")
	fl.IntVar(&c.wait, "wait", 0, "replicas that WAIT asks for after each mset; 0: no WAIT")
	fl.IntVar(&c.replicas, "replicas", 0, "replicas that ready waits for")
	fl.IntVar(&c.pid, "pid", 0, "process that ready gives up with; 0: none")
	fl.Uint64Var(&c.seed, "seed", 1, "of the keys")
	fl.Float64Var(&seconds, "seconds", 10, "measured time")
	fl.Float64Var(&warmup, "warmup", 1, "seconds before that")
	return cmd
}
