package shard

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rowraft/rowraft"
)

// TestSessionScripts runs the scripts of testdata/sessions against a replica with one row that counts the applied
// pushes. `go test ./shard -run TestSessionScripts -rewrite` replaces the output in the scripts.
//
//	open CLIENT INC [times=N]   opens a session, with a ticket of now, and names the sessions that it evicts
//	push CLIENT INC             one push for each line: NUMBER [floor=N] [table=ID] [rows=no]
//	close CLIENT INC
//	tick DURATION ...           adds to the log's time; a constant of the package counts as its duration; -: subtracts
//	fill [more=N]               opens sessions of new owners, each with one push: until the shard is full, or N;
//	                            gap: number 2
//	owner N                     counts the sessions of an owner
//	create ID                   creates a table
//	check CLIENT INC            what the server returns before the log
//	restore                     compares the replica with one that reads its snapshot
//
// A client is OWNER.NUMBER.
func TestSessionScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/sessions", func(t *testing.T, path string) {
		s := &sessionScript{pusher: newPusher(t)}
		datadriven.RunTest(t, path, s.run)
	})
}

type sessionScript struct {
	*pusher
	named []string // clients of the script that have a session
	owner uint64   // the last owner of fill
}

func (s *sessionScript) run(t *testing.T, d *datadriven.TestData) string {
	args := make([]string, 0, len(d.CmdArgs))
	var inc rowraft.Incarnation
	times := 1
	for i, a := range d.CmdArgs {
		if args = append(args, a.String()); i == 1 {
			fmt.Sscan(a.Key, &inc)
		}
	}
	d.MaybeScanArgs(t, "times", &times)
	switch d.Cmd {
	case "open":
		owner, n := parseClient(t, args[0])
		var out string
		for i := range uint32(times) {
			if out = outcome(s.openNow(crowd(owner, n+i), inc)); out != "ok" {
				break
			}
		}
		if out == "ok" && times == 1 && !slices.Contains(s.named, args[0]) {
			s.named = append(s.named, args[0])
		}
		return out + s.state(t)
	case "push":
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			var seq rowraft.Seq
			fields := strings.Fields(line)
			fmt.Sscan(fields[0], &seq)
			part := s.of(s.client(t, args[0]), inc, seq)
			for _, f := range fields[1:] {
				name, value, _ := strings.Cut(f, "=")
				var n uint64
				fmt.Sscan(value, &n)
				switch name {
				case "floor":
					part.Floor = rowraft.Seq(n)
				case "table":
					part.Payload = payloadOf(rows{schema: s.table, keys: []rowraft.Key{42}},
						rows{schema: testTable(rowraft.TableID(n), "late", 1, sgd), keys: []rowraft.Key{1}})
				case "rows":
					part.Payload = nil
				}
			}
			got := s.parts(part)[0]
			what := outcome(got.Err)
			switch {
			case got.Duplicate:
				what = strings.TrimPrefix(what+", a copy", "ok, ")
			case got.Err == nil:
				what = "new"
			}
			fmt.Fprintf(&out, "%s: %s, %d applied\n", strings.TrimSpace(line), what, int(s.count()))
		}
		return out.String()
	case "close":
		s.close(s.client(t, args[0]), inc)
		return "ok" + s.state(t)
	case "tick":
		for _, a := range args {
			a, back := strings.CutPrefix(a, "-")
			d, ok := map[string]time.Duration{"UnusedAfter": UnusedAfter, "IdleAfter": IdleAfter, "SilentAfter": SilentAfter,
				"SessionTTL": SessionTTL}[a]
			if !ok {
				var err error
				if d, err = time.ParseDuration(a); err != nil {
					t.Fatal(err)
				}
			}
			if back {
				d = -d
			}
			s.now += uint64(d)
		}
		return ""
	case "fill":
		first := rowraft.Seq(1)
		if d.HasArg("gap") {
			first = 2
		}
		for d.MaybeScanArgs(t, "more", &times); s.all() < MaxSessions || times > 1; times-- {
			s.owner++
			c := crowd(1<<40+s.owner, 0)
			s.mustOpenNow(c, 1)
			s.parts(s.of(c, 1, first))
		}
		return "ok" + s.state(t)
	case "owner":
		var owner uint64
		fmt.Sscan(args[0], &owner)
		from, to := s.Sessions.table.list.ofOwner(crowd(owner, 0))
		return fmt.Sprintf("%d sessions", to-from)
	case "create":
		var id rowraft.TableID
		fmt.Sscan(args[0], &id)
		s.create(testTable(id, "late", 1, sgd))
		return ""
	case "check":
		return outcome(s.Sessions.Check(s.client(t, args[0]), inc))
	case "time":
		return fmt.Sprint(time.Duration(s.LogTime()))
	case "restore":
		other := newReplica(t, Config{})
		if err := other.Restore(bytes.NewReader(s.snapshot())); err != nil || !sameState(other, s.replica) {
			return fmt.Sprintf("the restored replica differs: %v", err)
		}
		return "the same state"
	}
	t.Fatalf("unknown command %s", d.Cmd)
	return ""
}

// state returns the named clients that have lost their session since the last call, and counts the sessions.
func (s *sessionScript) state(t *testing.T) (out string) {
	s.named = slices.DeleteFunc(s.named, func(name string) bool {
		gone := !s.has(s.client(t, name))
		if gone {
			out += ", " + name + " ends"
		}
		return gone
	})
	return fmt.Sprintf("%s, %d sessions, %d evicted", out, s.all(), s.Sessions.Evicted())
}

func (*sessionScript) client(t *testing.T, name string) rowraft.ClientID {
	return crowd(parseClient(t, name))
}

func parseClient(t *testing.T, name string) (owner uint64, n uint32) {
	t.Helper()
	if _, err := fmt.Sscanf(name, "%d.%d", &owner, &n); err != nil {
		t.Fatalf("client %q: %v", name, err)
	}
	return owner, n
}

// outcome returns the code of an error, and says whether a session is over or was taken over.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if _, over := errors.AsType[*rowraft.SessionEndedError](err); over {
		return fmt.Sprint(rowraft.CodeOf(err), " (ended)")
	}
	return fmt.Sprint(rowraft.CodeOf(err))
}
