#!/usr/bin/env bash
# matrix.sh measures the whole path in many shapes, and Redis in the same
# rounds: pull, and push with 3 replicas and 1, each log backend, uniform and
# Zipf(1.05) keys, dim 16 and 64, float32 and bfloat16. It prints medians and, for
# each shape, the ratio to Redis with rows of the same dim.
#
# Environment: ROUNDS (1; quote 3 or more) SECONDS_EACH (5) ROWS (1000000)
# BATCH (8192) CONNS (4) OUT (a file that the rounds are appended to, as JSON
# lines) ROWRAFT_BENCH (bin/rowraft-bench) ONLY (a regular expression of shapes to measure)
# PROFILES (a directory for CPU profiles of one server of each shape, last round).
#
# A round of all shapes takes about 6 minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in '') ;; *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit $([ "$1" = --help ] && echo 0 || echo 2) ;; esac

bench=${ROWRAFT_BENCH:-bin/rowraft-bench} rounds=${ROUNDS:-1} out=${OUT:-} only=${ONLY:-.} profiles=${PROFILES:-}
export SECONDS_EACH=${SECONDS_EACH:-5} ROWS=${ROWS:-1000000} BATCH=${BATCH:-8192} CONNS=${CONNS:-4}

[ -x "$bench" ] || { echo "matrix.sh: no $bench: make build" >&2; exit 1; }
for dir in "$profiles" "${out:+$(dirname "$out")}"; do [ -z "$dir" ] || mkdir -p "$dir"; done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# NAME, the dim of Redis's rows, whether MGET or MSET is its peer, and the shape.
shapes() {
	cat <<'SHAPES'
pull 16 mget pull --replicas 3
pull-zipf 16 mget pull --replicas 3 --keys zipf
pull-bf16 16 mget pull --replicas 3 --dtype bfloat16
pull-64 64 mget pull --replicas 3 --dim 64
pull-64-bf16 64 mget pull --replicas 3 --dim 64 --dtype bfloat16
push3-rowlog 16 mset push --replicas 3 --log-backend rowlog
push3-bolt 16 mset push --replicas 3 --log-backend bolt
push3-zipf 16 mset push --replicas 3 --keys zipf
push3-bf16 16 mset push --replicas 3 --dtype bfloat16
push3-64 64 mset push --replicas 3 --dim 64
push3-64-bf16 64 mset push --replicas 3 --dim 64 --dtype bfloat16
push1-rowlog 16 mset push --replicas 1 --log-backend rowlog
push1-bolt 16 mset push --replicas 1 --log-backend bolt
SHAPES
}

number() { { tr -d '\n '; echo; } | sed -n "s/.*\"$1\":\([0-9.eE+-]*\).*/\1/p"; }
median() { sort -g | awk '{v[NR] = $1} END {if (NR == 0) exit 1; print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
keep() { # NAME JSON
	[ -z "$out" ] || printf '{"name":"%s","commit":"%s","time":"%s","result":%s}\n' "$1" \
		"$(git describe --tags --always --dirty)" "$(date -u +%FT%TZ)" "$(tr -d '\n' <<<"$2")" >>"$out"
}

for ((round = 1; round <= rounds; round++)); do
	for dim in 16 64; do
		echo "round $round of $rounds: redis, dim $dim" >&2
		redis=$(VALUE=$((4 * dim)) bench/peers/redis.sh)
		keep "redis-$dim" "$redis"
		number mget_rows_per_second <<<"$redis" >>"$tmp/mget-$dim"
		number mset_wait_rows_per_second <<<"$redis" >>"$tmp/mset-$dim"
	done
	while read -r name _ _ shape; do
		[[ $name =~ $only ]] || continue
		echo "round $round of $rounds: $name" >&2
		args=(--rows "$ROWS" --batch "$BATCH" --conns "$CONNS" --seconds "$SECONDS_EACH" --optimizer adagrad)
		[ -z "$profiles" ] || args+=(--server-cpu-profile "$profiles/$name.pprof")
		# shellcheck disable=SC2086 # the shape is several words
		result=$("$bench" $shape "${args[@]}" --json 2>"$tmp/err" </dev/null) || { cat "$tmp/err" >&2; exit 1; }
		keep "$name" "$result"
		for field in rows_per_second p50_ms p99_ms server_cpu_seconds_per_million_rows; do
			number "$field" <<<"$result" >>"$tmp/$name.$field"
		done
	done < <(shapes)
done

echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ //'), $(nproc) cores, $(date -u +%F), $(git describe --tags --always --dirty)"
echo "medians of $rounds rounds of $SECONDS_EACH s: $ROWS rows, $BATCH keys a call, $CONNS connections, Adagrad"
row='%-14s %10s %9s %9s %12s %10s %8s\n'
# shellcheck disable=SC2059 # one format for all rows
printf "$row" shape 'M rows/s' 'p50 ms' 'p99 ms' 'CPU s/M row' redis ratio
while read -r name dim peer _; do
	[ -s "$tmp/$name.rows_per_second" ] || continue
	rate=$(median <"$tmp/$name.rows_per_second") other=$(median <"$tmp/$peer-$dim")
	# shellcheck disable=SC2059
	printf "$row" "$name" "$(awk -v r="$rate" 'BEGIN {printf "%.3f", r / 1e6}')" "$(median <"$tmp/$name.p50_ms")" "$(median <"$tmp/$name.p99_ms")" \
		"$(awk -v c="$(median <"$tmp/$name.server_cpu_seconds_per_million_rows")" 'BEGIN {printf "%.3f", c}')" \
		"$(awk -v r="$other" 'BEGIN {printf "%.3f", r / 1e6}')" "$(awk -v a="$rate" -v b="$other" 'BEGIN {printf "%.1fx", a / b}')"
done < <(shapes)
