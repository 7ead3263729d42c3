#!/usr/bin/env bash
# redis.sh measures Debian's redis-server with rowraft's unit of work and prints
# one JSON object:
#
#   mget_rows_per_second         MGET on a server without persistence
#   mset_wait_rows_per_second    MSET, appendfsync always, 2 replicas, WAIT 1
#   mget_p50_ms …                times of one call
#
# Environment: ROWS (1000000) BATCH (8192) VALUE (64 bytes) CONNS (4) DEPTH (2
# calls in flight per connection) SECONDS_EACH (10) ROWRAFT_BENCH (bin/rowraft-bench).
#
# The replicas fsync as the master does: without it, what WAIT has counted is in
# the replica's memory only, while an acknowledged push of rowraft is on the
# disks of a majority.
#
# Exit status 3, with a message, if redis-server is not installed. Every server
# started here is ended by its pid, and the temporary directory is removed.
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 0 ;; esac

if ! command -v redis-server >/dev/null; then
	echo "redis.sh: skipped: no redis-server (apt-get install redis-server)" >&2
	exit 3
fi

rows=${ROWS:-1000000} batch=${BATCH:-8192} value=${VALUE:-64} conns=${CONNS:-4} depth=${DEPTH:-2} seconds=${SECONDS_EACH:-10}

tmp=$(mktemp -d)
pids=()
cleanup() {
	local pid
	for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

bench=${ROWRAFT_BENCH:-bin/rowraft-bench}
[ -x "$bench" ] || { echo "redis.sh: no $bench: make build" >&2; exit 1; }

# start NAME ARG… runs a server on a free port and leaves it in $port. The port
# may be taken between choosing and binding; then another is tried.
start() {
	local name=$1 try
	shift
	mkdir -p "$tmp/$name"
	for try in 1 2 3 4 5; do
		port=$("$bench" redis freeport)
		redis-server --port "$port" --bind 127.0.0.1 --dir "$tmp/$name" --save "" --daemonize no \
			--logfile "$tmp/$name/log" "$@" &
		pids+=($!)
		if "$bench" redis ready --addr "127.0.0.1:$port" --pid "${pids[-1]}" 2>/dev/null; then return; fi
		kill -9 "${pids[-1]}" 2>/dev/null || true
		wait "${pids[-1]}" || true
		unset 'pids[-1]'
	done
	echo "redis.sh: $name does not start:" >&2
	tail -5 "$tmp/$name/log" >&2
	exit 1
}

# stop ends the servers started so far: one phase does not slow the next.
stop() {
	local pid
	for pid in "${pids[@]}"; do kill "$pid"; done
	for pid in "${pids[@]}"; do wait "$pid" || true; done
	pids=()
}

number() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" <<<"$2"; }
common=(--rows "$rows" --batch "$batch" --value "$value" --conns "$conns" --depth "$depth" --seconds "$seconds")

start plain --appendonly no
"$bench" redis fill --addr "127.0.0.1:$port" "${common[@]}"
mget=$("$bench" redis mget --addr "127.0.0.1:$port" "${common[@]}")
stop

durable=(--appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0 --repl-diskless-sync yes
	--repl-diskless-sync-delay 0 --client-output-buffer-limit "replica 0 0 0")
start master "${durable[@]}"
master=$port
start replica1 "${durable[@]}" --replicaof 127.0.0.1 "$master"
start replica2 "${durable[@]}" --replicaof 127.0.0.1 "$master"
"$bench" redis ready --addr "127.0.0.1:$master" --replicas 2
"$bench" redis fill --addr "127.0.0.1:$master" "${common[@]}"
"$bench" redis ready --addr "127.0.0.1:$master" --replicas 2
mset=$("$bench" redis mset --addr "127.0.0.1:$master" "${common[@]}" --wait 1)
stop

cat <<EOF
{"redis_version":"$(redis-server --version | sed -n 's/.*v=\([^ ]*\).*/\1/p')","mget_rows_per_second":$(number rows_per_second "$mget"),"mget_p50_ms":$(number p50_ms "$mget"),"mget_p99_ms":$(number p99_ms "$mget"),"mset_wait_rows_per_second":$(number rows_per_second "$mset"),"mset_wait_p50_ms":$(number p50_ms "$mset"),"mset_wait_p99_ms":$(number p99_ms "$mset"),"rows":$rows,"batch":$batch,"value_bytes":$value,"conns":$conns,"depth":$depth,"seconds":$seconds}
EOF
