package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	waitPoll  = 250 * time.Millisecond
	waitEvery = 3 * time.Second // between two lines about the wait
	askLimit  = time.Second     // for one answer
)

// waiter waits until the servers of a cluster are ready.
type waiter struct {
	tls         rpc.TLSFiles
	out         io.Writer
	poll, every time.Duration

	told time.Time
}

// until calls look until it returns "". look returns what is missing, and whether it could find out.
//
// Errors: the cause of ctx, if it ends before.
func (w *waiter) until(ctx context.Context, endpoints []string,
	look func(context.Context, map[string]rowraftv1.ClusterClient) (missing string, sure bool)) error {
	conf, err := w.tls.OpenToCall(nil)
	if err != nil {
		return err
	}
	pool := route.NewPool(conf, nil, 1)
	defer pool.Close()
	stubs := make(map[string]rowraftv1.ClusterClient)
	for _, e := range endpoints {
		conn, err := pool.Get(e)
		if err != nil {
			return err
		}
		stubs[e] = rowraftv1.NewClusterClient(conn)
	}
	tick := time.NewTicker(w.poll)
	defer tick.Stop()
	for missing := ""; ; {
		ask, cancel := context.WithTimeout(ctx, askLimit)
		now, sure := look(ask, stubs)
		cancel()
		if now == "" {
			return nil
		}
		if missing == "" || sure { // an answer that was cut off is less certain than the previous one
			missing = now
		}
		if now := time.Now(); now.Sub(w.told) >= w.every {
			w.told = now
			fmt.Fprintln(w.out, missing)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), missing[strings.LastIndexByte(missing, '\n')+1:])
		}
	}
}

// servers returns when every endpoint answers and the cluster has its shards.
func (w *waiter) servers(ctx context.Context, endpoints []string) error {
	return w.until(ctx, endpoints, func(ctx context.Context, stubs map[string]rowraftv1.ClusterClient) (string, bool) {
		why := notReady(silent(ctx, endpoints, stubs))
		if why == "" {
			why = missingShards(ctx, endpoints, stubs)
		}
		if why == "" {
			return "", true
		}
		return "server not ready, wait 3 sec to retry...\n" + why, true
	})
}

// workers returns when the job has all of its n workers. This worker has entered the job, and its member keeps its
// lease.
func (w *waiter) workers(ctx context.Context, scheduler, job string, n int) error {
	return w.until(ctx, []string{scheduler}, func(ask context.Context, stubs map[string]rowraftv1.ClusterClient) (string,
		bool) {
		st, err := stubs[scheduler].Status(ask, &rowraftv1.StatusRequest{})
		if err != nil {
			return fmt.Sprintf("the scheduler at %s does not answer which workers are there: %v", scheduler, err), false
		}
		for _, j := range st.GetJobs() {
			if j.GetJob() != job {
				continue
			}
			here := slices.DeleteFunc(slices.Clone(j.GetMembers()), func(name string) bool { return name == "" })
			if len(here) >= n {
				return "", true
			}
			return fmt.Sprintf("%d of %d workers are here: [%s]", len(here), n, strings.Join(here, ", ")), true
		}
		return fmt.Sprintf("none of %d workers is here", n), true
	})
}

// silent returns the endpoints that do not answer.
func silent(ctx context.Context, endpoints []string, stubs map[string]rowraftv1.ClusterClient) []string {
	up := make([]bool, len(endpoints))
	var all sync.WaitGroup
	for i, e := range endpoints {
		all.Go(func() {
			_, err := stubs[e].Hello(ctx, &rowraftv1.HelloRequest{})
			up[i] = err == nil
		})
	}
	all.Wait()
	var out []string
	for i, e := range endpoints {
		if !up[i] {
			out = append(out, e)
		}
	}
	return out
}

// notReady lists endpoints in the wording of other frameworks.
func notReady(endpoints []string) string {
	if len(endpoints) == 0 {
		return ""
	}
	return "not ready endpoints:['" + strings.Join(endpoints, "', '") + "']"
}

// missingShards returns why there are no shards yet, "" if there are.
func missingShards(ctx context.Context, endpoints []string, stubs map[string]rowraftv1.ClusterClient) string {
	var st *rowraftv1.StatusReply
	why := "the servers have not formed the cluster yet"
	for _, e := range endpoints {
		c := stubs[e]
		reply, err := c.GetMap(ctx, &rowraftv1.GetMapRequest{})
		if err != nil {
			return fmt.Sprintf("%s: %v", e, err)
		}
		if len(reply.GetMap().GetShards()) > 0 {
			return ""
		}
		if st == nil {
			st, _ = c.Status(ctx, &rowraftv1.StatusRequest{}) // any member of the scheduler answers; there may be no leader yet
		}
	}
	if st == nil {
		return why
	}
	var here []string
	for _, n := range st.GetNodes() {
		if !n.GetNode().GetNoShards() {
			here = append(here, n.GetNode().GetAddr())
		}
	}
	return fmt.Sprintf("%d of %d servers are here: [%s]", len(here), st.GetExpectedServers(), strings.Join(here, ", "))
}
