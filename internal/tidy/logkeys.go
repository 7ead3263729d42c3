package tidy

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
)

// logKeys are the keys under which the logs of the project tell things, for people who
// search them and programs that read them: one thing has one key, in every package, and a
// key that has been in a release keeps its meaning. Units stand in the name.
var logKeys = keySet(
	// where: of what the line speaks
	"action", "addr", "addrs", "checkpoint", "cluster", "component", "destination", "dir", "file", "follower", "group",
	"job", "leader", "member", "metric", "move", "op",
	"operation", "page", "path", "peer", "policy", "process", "rank", "remote", "replica", "role", "self", "server",
	"shard", "snapshot", "table", "token", "trainer", "worker", "workers",
	// when, in the order of the logs and of training
	"applied", "batch", "boundary", "epoch", "first", "format_version", "generation", "id", "incarnation", "index", "last",
	"last_index", "map_version", "mark", "phase", "step", "term",
	// how much
	"bytes", "founders", "free_bytes", "full", "kept_bytes", "left_on_machine", "limit_bytes", "most_replicas_on_a_server",
	"of_go", "removed", "replicas", "reserve_bytes", "rows", "servers",
	"shards", "trainers", "tries", "used_bytes", "uses",
	// how long
	"fsync", "fsync_limit", "heartbeat", "held", "lateness", "lateness_limit", "silent", "started", "took",
	// what happened, and why
	"after", "apply", "as", "before", "behind", "by", "code", "err", "fault", "faults", "from", "intent", "kind",
	"metadata", "new", "of", "old", "profile", "reason", "state", "through",
	"to", "training", "verdict", "waiting_for", "what", "why",
	// who
	"cert", "expires", "hosts", "identity", "insecure", "name",
)

func keySet(keys ...string) map[string]bool {
	set := make(map[string]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// logger is how variables that hold one are called.
var logger = regexp.MustCompile(`^(l|log|logger|Logger|slog)$`)

// checkLogKeys wants every key of a log line to be one of logKeys.
func checkLogKeys(r *Repo) []Finding {
	var out []Finding
	for _, f := range r.Files {
		if f.Test || f.Generated {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, key := range keysOf(call) {
				if text, err := strconv.Unquote(key.Value); err == nil && !logKeys[text] {
					out = append(out, r.finding("logkeys", f, key,
						"logs %q, which is not in internal/tidy/logkeys.go: take a key that is, or add it there", text))
				}
			}
			return true
		})
	}
	return out
}

// keysOf returns the literal keys of a call of a logger.
func keysOf(call *ast.CallExpr) (keys []*ast.BasicLit) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !logger.MatchString(lastName(method.X)) {
		return nil
	}
	at := 0
	switch method.Sel.Name {
	case "With":
	case "Debug", "Info", "Warn", "Error":
		at = 1 // behind the message
	case "Log":
		at = 3 // behind context, level and message
	default:
		return nil
	}
	for at < len(call.Args) {
		lit, ok := call.Args[at].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING { // an attribute, or a list of them
			at++
			continue
		}
		keys = append(keys, lit)
		at += 2
	}
	return keys
}

// lastName is the name of a variable or field, "" of anything else.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
