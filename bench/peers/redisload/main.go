// Command redisload drives a Redis server with the unit of work that rowraft's
// own benchmark has: 8,192 keys a call, 64-byte values, uniform keys, several
// connections.
//
//	redisload fill --addr 127.0.0.1:6379 --rows 1000000
//	redisload mget --addr … --seconds 10     one JSON object on standard output
//	redisload mset --addr … --wait 1         each MSET is followed by WAIT 1
//	redisload ready --addr … --replicas 2    waits until the server and its replicas are in step
//	redisload freeport                       a port that nobody listens on
//
// Its RESP client is written for this: requests and replies are buffered, and a
// connection keeps --depth calls in flight, so Redis and not the load is what
// is measured. bench/peers/redis.sh starts the servers.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"time"
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

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "redisload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a command: fill, mget, mset, ready or freeport")
	}
	var c config
	fs := flag.NewFlagSet("redisload "+args[0], flag.ExitOnError)
	fs.StringVar(&c.addr, "addr", "127.0.0.1:6379", "host:port of the server")
	fs.IntVar(&c.rows, "rows", 1_000_000, "keys in the server")
	fs.IntVar(&c.batch, "batch", 8192, "different keys per call")
	fs.IntVar(&c.value, "value", 64, "bytes per value")
	fs.IntVar(&c.conns, "conns", 4, "connections")
	fs.IntVar(&c.depth, "depth", 2, "calls in flight per connection")
	fs.IntVar(&c.wait, "wait", 0, "replicas that WAIT asks for after each mset; 0: no WAIT")
	fs.IntVar(&c.replicas, "replicas", 0, "replicas that `ready` waits for")
	fs.IntVar(&c.pid, "pid", 0, "process that `ready` gives up with; 0: none")
	fs.Uint64Var(&c.seed, "seed", 1, "of the keys")
	seconds := fs.Float64("seconds", 10, "measured time")
	warmup := fs.Float64("warmup", 1, "seconds before that")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	c.duration = time.Duration(*seconds * float64(time.Second))
	c.warmup = time.Duration(*warmup * float64(time.Second))
	if c.batch < 1 || c.batch > c.rows || c.conns < 1 || c.depth < 1 {
		return fmt.Errorf("want 1 ≤ batch ≤ rows and at least one connection and call in flight")
	}
	switch args[0] {
	case "fill":
		return fill(c)
	case "mget", "mset":
		result, err := load(c, args[0])
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(result)
	case "ready":
		return ready(c)
	case "freeport":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
		return l.Close()
	}
	return fmt.Errorf("unknown command %q", args[0])
}
