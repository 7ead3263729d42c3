package launch

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rowraft/rowraft"
)

// Flags that variables of a framework set.
const (
	FlagRole       = "role"
	FlagScheduler  = "scheduler"
	FlagServerList = "server-list"
	FlagServers    = "servers"
	FlagWorkers    = "workers"
	FlagRank       = "rank"
	FlagListen     = "listen"
	FlagHost       = "host"
	FlagName       = "name"
	FlagDataRoot   = "data-root"
)

// Roles of a process.
const (
	Scheduler = "scheduler"
	Server    = "server"
	Worker    = "worker"
)

// Setting is the value that a variable gives a flag.
type Setting struct{ Flag, Value, Variable string }

// Environment is what the variables of a framework say.
type Environment struct {
	Settings []Setting
	Warnings []string
}

var (
	roles       = map[string]string{"MS_SCHED": Scheduler, "MS_PSERVER": Server, "MS_WORKER": Worker}
	paddleRoles = map[string]string{"PSERVER": Server, "TRAINER": Worker}
)

// reader looks variables up and keeps the first error.
type reader struct {
	lookup func(string) (string, bool)
	out    Environment
	err    error
}

// Read reads the variables of MindSpore, if MS_ROLE is set, or of Paddle, if
// TRAINING_ROLE is.
//
// Errors: CodeInvalidArgument, naming the variable.
func Read(lookup func(string) (string, bool)) (Environment, error) {
	r := &reader{lookup: lookup}
	_, ms := r.get("MS_ROLE")
	_, paddle := r.get("TRAINING_ROLE")
	switch {
	case ms && paddle:
		return r.out, invalid("MS_ROLE and TRAINING_ROLE are both set: unset one of them")
	case ms:
		r.mindSpore()
	case paddle:
		r.paddle()
	}
	return r.out, r.err
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}

// get returns a variable; an empty one counts as not set.
func (r *reader) get(name string) (string, bool) {
	v, _ := r.lookup(name)
	v = strings.TrimSpace(v)
	return v, v != ""
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = invalid(format, args...)
	}
}

func (r *reader) set(flag, value, variable string) {
	r.out.Settings = append(r.out.Settings, Setting{flag, value, variable})
}

func (r *reader) mindSpore() {
	r.role("MS_ROLE", roles, "MS_SCHED, MS_PSERVER or MS_WORKER")
	portName := "MS_SCHED_PORT"
	if v, ok := r.get("MS_SCHED_POST"); ok {
		if right, both := r.get(portName); !both {
			portName = "MS_SCHED_POST"
			r.out.Warnings = append(r.out.Warnings, "MS_SCHED_POST is read as MS_SCHED_PORT, which is how it is spelled")
		} else if right != v {
			r.fail("MS_SCHED_PORT is %s and MS_SCHED_POST is %s: unset MS_SCHED_POST", right, v)
		}
	}
	host, hasHost := r.get("MS_SCHED_HOST")
	_, hasPort := r.get(portName)
	switch {
	case hasHost && hasPort:
		r.set(FlagScheduler, net.JoinHostPort(r.host("MS_SCHED_HOST", host), r.port(portName)), "MS_SCHED_HOST and "+portName)
	case hasHost:
		r.fail("MS_SCHED_HOST is set and MS_SCHED_PORT is not: set the port of the scheduler")
	case hasPort:
		r.fail("%s is set and MS_SCHED_HOST is not: set the address of the scheduler", portName)
	}
	r.count(FlagServers, "MS_SERVER_NUM")
	r.count(FlagWorkers, "MS_WORKER_NUM")
	if v, ok := r.get("MS_WORKER_IP"); ok {
		r.set(FlagHost, r.host("MS_WORKER_IP", v), "MS_WORKER_IP")
	}
	r.text(FlagName, "MS_NODE_ID")
	r.text(FlagDataRoot, "MS_RECOVERY_PATH")
}

func (r *reader) paddle() {
	r.role("TRAINING_ROLE", paddleRoles, "PSERVER or TRAINER")
	r.text(FlagServerList, "PADDLE_PSERVERS_IP_PORT_LIST")
	r.count(FlagWorkers, "PADDLE_TRAINERS_NUM")
	if v, _ := r.get("TRAINING_ROLE"); v == "TRAINER" {
		if v, ok := r.get("PADDLE_TRAINER_ID"); ok {
			if n, err := strconv.Atoi(v); err != nil || n < 0 {
				r.fail("PADDLE_TRAINER_ID is %q: want a number from 0 on", v)
			}
			r.set(FlagRank, v, "PADDLE_TRAINER_ID")
		}
		return
	}
	ip, hasIP := r.get("POD_IP")
	_, hasPort := r.get("PADDLE_PORT")
	switch {
	case hasIP && hasPort:
		r.set(FlagListen, net.JoinHostPort(r.host("POD_IP", ip), r.port("PADDLE_PORT")), "POD_IP:PADDLE_PORT")
	case hasIP:
		r.fail("POD_IP is set and PADDLE_PORT is not: set the port that this server has in PADDLE_PSERVERS_IP_PORT_LIST")
	case hasPort:
		r.fail("PADDLE_PORT is set and POD_IP is not: set the address that this server has in PADDLE_PSERVERS_IP_PORT_LIST")
	}
}

func (r *reader) role(variable string, known map[string]string, want string) {
	v, _ := r.get(variable)
	role, ok := known[v]
	if !ok {
		r.fail("%s is %q: want %s", variable, v, want)
	}
	r.set(FlagRole, role, variable)
}

func (r *reader) text(flag, variable string) {
	if v, ok := r.get(variable); ok {
		r.set(flag, v, variable)
	}
}

func (r *reader) count(flag, variable string) {
	v, ok := r.get(variable)
	if !ok {
		return
	}
	if n, err := strconv.Atoi(v); err != nil || n < 1 {
		r.fail("%s is %q: want a number from 1 on", variable, v)
	}
	r.set(flag, v, variable)
}

func (r *reader) port(variable string) string {
	v, _ := r.get(variable)
	if err := checkPort(v); err != nil {
		r.fail("%s is %q: %w", variable, v, err)
	}
	return v
}

func (r *reader) host(variable, host string) string {
	if err := checkHost(host); err != nil {
		r.fail("%s is %q: %w", variable, host, err)
	}
	return strings.Trim(host, "[]")
}

func checkPort(port string) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("want a port from 1 to 65535")
	}
	return nil
}

// checkHost refuses what can be neither an address nor a name.
func checkHost(host string) error {
	bare := strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(bare); err == nil {
		return nil
	}
	if bare == "" || strings.ContainsAny(bare, ":/ ,\t[]@") {
		return fmt.Errorf("want an address or the name of a machine, without a port")
	}
	return nil
}

// checkAddr refuses what is not host:port.
func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("want host:port")
	}
	if err := checkHost(host); err != nil {
		return err
	}
	return checkPort(port)
}
