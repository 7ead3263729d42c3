package launch

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// plan is what both steps make of an environment, NAME=value with spaces between.
func plan(env string) (Plan, Environment, error) {
	vars := make(map[string]string)
	for _, v := range strings.Fields(env) {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	e, err := Read(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
	if err != nil {
		return Plan{}, e, err
	}
	v := Values{Rank: -1, Variables: make(map[string]string)}
	for _, s := range e.Settings {
		v.Variables[s.Flag] = s.Variable
		n, _ := strconv.Atoi(s.Value)
		switch s.Flag {
		case FlagRole:
			v.Role = s.Value
		case FlagScheduler:
			v.Scheduler = s.Value
		case FlagServerList:
			v.ServerList = strings.Split(s.Value, ",")
		case FlagServers:
			v.Servers = n
		case FlagWorkers:
			v.Workers = n
		case FlagRank:
			v.Rank = n
		case FlagListen:
			v.Listen = s.Value
		}
	}
	p, err := v.Plan()
	return p, e, err
}

const (
	ms     = " MS_SCHED_HOST=10.0.0.9 MS_SCHED_PORT=8118 MS_SERVER_NUM=2 MS_WORKER_NUM=3"
	paddle = " PADDLE_PSERVERS_IP_PORT_LIST=b:2,a:1,d:4,c:3 PADDLE_TRAINERS_NUM=2"
)

func TestPlan(t *testing.T) {
	list := []string{"a:1", "b:2", "c:3", "d:4"}
	for _, tc := range []struct {
		env  string
		want Plan
	}{
		{"MS_ROLE=MS_SCHED" + ms, Plan{Role: Scheduler, Scheduler: "10.0.0.9:8118", Servers: 2, Workers: 3,
			Listen: "10.0.0.9:8118", Rank: -1}},
		{"MS_ROLE=MS_PSERVER" + ms, Plan{Role: Server, Scheduler: "10.0.0.9:8118", Servers: 2, Workers: 3, Rank: -1}},
		{"MS_ROLE=MS_WORKER" + ms, Plan{Role: Worker, Scheduler: "10.0.0.9:8118", Servers: 2, Workers: 3, Rank: -1}},
		{"MS_ROLE=MS_WORKER MS_SCHED_HOST=::1 MS_SCHED_POST=1 MS_WORKER_NUM=1",
			Plan{Role: Worker, Scheduler: "[::1]:1", Workers: 1, Rank: -1}},
		{"TRAINING_ROLE=PSERVER POD_IP=c PADDLE_PORT=3" + paddle, Plan{Role: Server, ServerList: list, Servers: 4, Workers: 2,
			Listen: "c:3", Rank: -1}},
		{"TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1 POD_IP=x PADDLE_PORT=y" + paddle,
			Plan{Role: Worker, ServerList: list, Servers: 4, Workers: 2, Rank: 1}},
	} {
		got, _, err := plan(tc.env)
		if err != nil || got.Role != tc.want.Role || got.Scheduler != tc.want.Scheduler ||
			!slices.Equal(got.ServerList, tc.want.ServerList) ||
			got.Servers != tc.want.Servers || got.Workers != tc.want.Workers || got.Listen != tc.want.Listen ||
			got.Rank != tc.want.Rank {
			t.Errorf("%s: %+v, %v; want %+v", tc.env, got, err, tc.want)
		}
	}
}

func TestFoundersFollowFromTheList(t *testing.T) {
	p, _, err := plan("TRAINING_ROLE=PSERVER POD_IP=c PADDLE_PORT=3" + paddle)
	q, _, err2 := plan("TRAINING_ROLE=PSERVER POD_IP=d PADDLE_PORT=4 PADDLE_PSERVERS_IP_PORT_LIST=d:4,c:3,b:2,a:1")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if want := []string{"a:1", "b:2", "c:3"}; !slices.Equal(p.Founders(), want) || !slices.Equal(q.Founders(), want) {
		t.Errorf("founders %v and %v, want %v whatever the order of the list", p.Founders(), q.Founders(), want)
	}
	if p, _, _ := plan("TRAINING_ROLE=PSERVER POD_IP=a PADDLE_PORT=1 PADDLE_PSERVERS_IP_PORT_LIST=a:1,b:2"); len(
		p.Founders()) != 2 || p.Replicas() != 2 {
		t.Errorf("of two servers %v are founders, %d replicas", p.Founders(), p.Replicas())
	}
}

func TestTheMisspellingIsReadWithAWarning(t *testing.T) {
	p, e, err := plan("MS_ROLE=MS_PSERVER MS_SCHED_HOST=h MS_SCHED_POST=8118")
	if err != nil || p.Scheduler != "h:8118" || len(e.Warnings) != 1 || !strings.Contains(e.Warnings[0], "MS_SCHED_POST") {
		t.Errorf("%+v, warnings %q, %v", p, e.Warnings, err)
	}
	if _, e, err := plan("MS_ROLE=MS_PSERVER MS_SCHED_HOST=h MS_SCHED_PORT=8118 MS_SCHED_POST=8118"); err != nil ||
		len(e.Warnings) != 0 {
		t.Errorf("both alike: %q, %v", e.Warnings, err)
	}
}

// Each wrong environment is refused, and the error names the variable.
func TestBadEnvironments(t *testing.T) {
	for env, names := range map[string]string{
		"":                                       "MS_ROLE",
		"MS_ROLE=MS_SERVER" + ms:                 "MS_ROLE",
		"TRAINING_ROLE=WORKER" + paddle:          "TRAINING_ROLE",
		"MS_ROLE=MS_SCHED TRAINING_ROLE=PSERVER": "MS_ROLE and TRAINING_ROLE",
		"MS_ROLE=MS_PSERVER":                     "MS_SCHED_HOST",
		"MS_ROLE=MS_PSERVER MS_SCHED_HOST=h":     "MS_SCHED_PORT",
		"MS_ROLE=MS_PSERVER MS_SCHED_PORT=1":     "MS_SCHED_HOST",
		"MS_ROLE=MS_PSERVER MS_SCHED_HOST=h MS_SCHED_PORT=0":                  "MS_SCHED_PORT",
		"MS_ROLE=MS_PSERVER MS_SCHED_HOST=h MS_SCHED_PORT=65536":              "MS_SCHED_PORT",
		"MS_ROLE=MS_PSERVER MS_SCHED_HOST=h MS_SCHED_POST=x":                  "MS_SCHED_POST",
		"MS_ROLE=MS_PSERVER MS_SCHED_HOST=h:1 MS_SCHED_PORT=1":                "MS_SCHED_HOST",
		"MS_ROLE=MS_PSERVER MS_SCHED_HOST=h MS_SCHED_PORT=1 MS_SCHED_POST=2":  "MS_SCHED_POST",
		"MS_ROLE=MS_PSERVER MS_WORKER_IP=a/b MS_SCHED_HOST=h MS_SCHED_PORT=1": "MS_WORKER_IP",
		"MS_ROLE=MS_SCHED MS_SCHED_HOST=h MS_SCHED_PORT=1 MS_WORKER_NUM=1":    "MS_SERVER_NUM",
		"MS_ROLE=MS_SCHED MS_SCHED_HOST=h MS_SCHED_PORT=1 MS_SERVER_NUM=1":    "MS_WORKER_NUM",
		"MS_ROLE=MS_SCHED MS_SERVER_NUM=0 MS_SCHED_HOST=h MS_SCHED_PORT=1":    "MS_SERVER_NUM",
		"MS_ROLE=MS_WORKER MS_SCHED_HOST=h MS_SCHED_PORT=1":                   "MS_WORKER_NUM",
		"MS_ROLE=MS_WORKER MS_SCHED_HOST=h MS_SCHED_PORT=1 MS_WORKER_NUM=two": "MS_WORKER_NUM",
		"TRAINING_ROLE=PSERVER POD_IP=a PADDLE_PORT=1":                        "PADDLE_PSERVERS_IP_PORT_LIST",
		"TRAINING_ROLE=PSERVER PADDLE_PORT=1" + paddle:                        "POD_IP",
		"TRAINING_ROLE=PSERVER POD_IP=a" + paddle:                             "PADDLE_PORT",
		"TRAINING_ROLE=PSERVER" + paddle:                                      "POD_IP and PADDLE_PORT",
		"TRAINING_ROLE=PSERVER POD_IP=a PADDLE_PORT=2" +
			paddle: "POD_IP:PADDLE_PORT is a:2, which is not in PADDLE_PSERVERS_IP_PORT_LIST",
		"TRAINING_ROLE=PSERVER POD_IP=a PADDLE_PORT=1 " +
			"PADDLE_PSERVERS_IP_PORT_LIST=a:1,b:2,a:1": "PADDLE_PSERVERS_IP_PORT_LIST has a:1 twice",
		"TRAINING_ROLE=PSERVER POD_IP=a PADDLE_PORT=1 " +
			"PADDLE_PSERVERS_IP_PORT_LIST=a:1,b": "PADDLE_PSERVERS_IP_PORT_LIST has \"b\"",
		"TRAINING_ROLE=TRAINER PADDLE_PSERVERS_IP_PORT_LIST=a:1 PADDLE_TRAINER_ID=0": "PADDLE_TRAINERS_NUM",
		"TRAINING_ROLE=TRAINER" + paddle:                                             "PADDLE_TRAINER_ID",
		"TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=2" +
			paddle: "PADDLE_TRAINER_ID is 2 and PADDLE_TRAINERS_NUM is 2",
		"TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=-1" + paddle: "PADDLE_TRAINER_ID",
	} {
		_, _, err := plan(env)
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), names) {
			t.Errorf("%q: %v, want a refusal that names %s", env, err, names)
		}
	}
}
