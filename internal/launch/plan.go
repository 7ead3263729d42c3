package launch

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Values are those of the flags of `start`, and where they come from: the variables
// of a framework, by flag. What is in none comes from the command line, a ROWRAFT_ variable
// or a file.
type Values struct {
	Role, Scheduler  string
	ServerList       []string
	Servers, Workers int
	Listen           string
	Rank             int // −1: not set
	Variables        map[string]string
}

// Plan is what the process is to do.
type Plan struct {
	Role string
	// Scheduler is host:port of the process of the scheduler; "": it is in the servers.
	Scheduler string
	// ServerList are all servers, in order, where there is no process of the scheduler.
	ServerList       []string
	Servers, Workers int // expected; 0: not known
	Listen           string
	Rank             int // of a worker; −1: the scheduler says
}

// members of the scheduler among listed servers: more would only make it slower.
const members = 3

// Plan checks v for the roles that this binary has.
//
// Errors: CodeInvalidArgument, naming the variable or flag.
func (v *Values) Plan() (Plan, error) {
	p := Plan{Role: v.Role, Scheduler: v.Scheduler, Servers: v.Servers, Workers: v.Workers, Listen: v.Listen, Rank: v.Rank}
	if err := v.checkRole(); err != nil {
		return p, err
	}
	if len(v.ServerList) > 0 && v.Scheduler != "" {
		return p, invalid("%s and %s are both set: a list of servers needs no scheduler, so leave one out",
			v.called(FlagServerList), v.called(FlagScheduler))
	}
	if err := v.checkServers(&p); err != nil {
		return p, err
	}
	switch v.Role {
	case Scheduler:
		return p, v.checkScheduler(&p)
	case Server:
		return p, v.checkServer(&p)
	}
	return p, v.checkWorker(&p)
}

// called is the variable that a flag's value comes from, or the flag.
func (v *Values) called(flag string) string {
	if name, ok := v.Variables[flag]; ok {
		return name
	}
	return "--" + flag
}

// usual names what people set to give a flag a value.
var usual = map[string]string{
	FlagScheduler: "MS_SCHED_HOST and MS_SCHED_PORT", FlagServers: "MS_SERVER_NUM", FlagWorkers: "MS_WORKER_NUM",
	FlagServerList: "PADDLE_PSERVERS_IP_PORT_LIST", FlagListen: "POD_IP and PADDLE_PORT", FlagRank: "PADDLE_TRAINER_ID",
}

// missing says that a flag needs a value.
func (v *Values) missing(flag, why string) error {
	name := usual[flag]
	if flag == FlagWorkers && v.paddle() {
		name = "PADDLE_TRAINERS_NUM"
	}
	return invalid("%s (or --%s) is not set: %s", name, flag, why)
}

func (v *Values) paddle() bool {
	return v.Variables[FlagRole] == "TRAINING_ROLE" || len(v.ServerList) > 0
}

func (v *Values) checkRole() error {
	switch v.Role {
	case Scheduler, Server, Worker:
		return nil
	case "":
		return invalid("no role: set MS_ROLE to MS_SCHED, MS_PSERVER or MS_WORKER, or TRAINING_ROLE to PSERVER or TRAINER, " +
			"or give --role scheduler, server or worker")
	}
	return invalid("%s is %q: want scheduler, server or worker", v.called(FlagRole), v.Role)
}

// checkServers checks where the cluster is.
func (v *Values) checkServers(p *Plan) error {
	if v.Scheduler != "" {
		if err := checkAddr(v.Scheduler); err != nil {
			return invalid("%s is %q: %w", v.called(FlagScheduler), v.Scheduler, err)
		}
		return nil
	}
	name := v.called(FlagServerList)
	for _, s := range v.ServerList {
		s = strings.TrimSpace(s)
		if err := checkAddr(s); err != nil {
			return invalid("%s has %q: %w", name, s, err)
		}
		if slices.Contains(p.ServerList, s) {
			return invalid("%s has %s twice: name each server once", name, s)
		}
		p.ServerList = append(p.ServerList, s)
	}
	slices.Sort(p.ServerList)
	switch {
	case v.paddle() && len(p.ServerList) == 0:
		return v.missing(FlagServerList, "host:port of every server")
	case !v.paddle():
		return v.missing(FlagScheduler, "where the scheduler is")
	case v.Servers > 0 && v.Servers != len(p.ServerList):
		return invalid("%s is %d and %s has %d servers", v.called(FlagServers), v.Servers, name, len(p.ServerList))
	}
	p.Servers = len(p.ServerList)
	return nil
}

func (v *Values) checkScheduler(p *Plan) error {
	switch {
	case len(p.ServerList) > 0:
		return invalid("%s: with a list of servers the scheduler is in them: start none", v.called(FlagServerList))
	case v.Servers < 1:
		return v.missing(FlagServers, "how many servers the cluster has")
	case v.Workers < 1:
		return v.missing(FlagWorkers, "how many workers train")
	case v.Listen != "" && v.Listen != v.Scheduler:
		return invalid("%s is %s and %s is %s: the scheduler listens where the others look for it", v.called(FlagListen),
			v.Listen, v.called(FlagScheduler), v.Scheduler)
	}
	p.Listen = v.Scheduler
	return nil
}

func (v *Values) checkServer(p *Plan) error {
	switch {
	case v.Listen != "":
	case len(p.ServerList) > 0:
		return v.missing(FlagListen, "which of the listed servers this one is")
	default:
		return nil
	}
	// A port of 0 lets the kernel choose, where no list has to know it.
	host, port, _ := net.SplitHostPort(v.Listen)
	if err := checkAddr(v.Listen); err != nil && !(port == "0" && checkHost(host) == nil && len(p.ServerList) == 0) {
		return invalid("%s is %q: %w", v.called(FlagListen), v.Listen, err)
	}
	if len(p.ServerList) > 0 && !slices.Contains(p.ServerList, v.Listen) {
		return invalid("%s is %s, which is not in %s: %s", v.called(FlagListen), v.Listen, v.called(FlagServerList),
			strings.Join(p.ServerList, ","))
	}
	return nil
}

func (v *Values) checkWorker(p *Plan) error {
	switch {
	case v.Workers < 1:
		return v.missing(FlagWorkers, "how many workers train")
	case len(p.ServerList) > 0 && v.Rank < 0:
		return v.missing(FlagRank, "which of the "+strconv.Itoa(v.Workers)+" trainers this one is, from 0")
	case v.Rank >= v.Workers:
		return invalid("%s is %d and %s is %d: want a number from 0 to %d", v.called(FlagRank), v.Rank, v.called(FlagWorkers),
			v.Workers, v.Workers-1)
	}
	return nil
}

// Founders are the servers of a list that the scheduler lives in. They follow from the
// list, in whatever order each process was given it.
func (p *Plan) Founders() []string { return p.ServerList[:min(members, len(p.ServerList))] }

// Replicas is how many copies of each row there will be.
func (p *Plan) Replicas() int { return min(3, p.Servers) }

// HostTowards is the address of this machine from which addr is reached. No packet is sent.
func HostTowards(addr string) string {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return "127.0.0.1"
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}
