#!/usr/bin/env bash
# compare.sh measures rowraft and Redis alternately, with the same unit of work
# on the same machine, and prints medians and their ratios.
#
# Environment: ROUNDS (3; quote 5 or more) SECONDS_EACH (10) ROWS (1000000)
# BATCH (8192) CONNS (4) BACKEND (rowlog) OUT (a file that the rounds are appended
# to, as JSON lines) ROWRAFT_BENCH (bin/rowraft-bench).
#
# --gate exits 1 unless pull reaches 6 M rows/s or 6 times Redis's MGET, and
# push with 3 replicas and fsync 1.2 M rows/s or 5 times Redis's MSET with
# appendfsync always, 2 replicas and WAIT 1.
set -euo pipefail
cd "$(dirname "$0")/../.."

gate=
case "${1:-}" in
'') ;;
--gate) gate=1 ;;
*) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit $([ "$1" = --help ] && echo 0 || echo 2) ;;
esac

bench=${ROWRAFT_BENCH:-bin/rowraft-bench} rounds=${ROUNDS:-3} backend=${BACKEND:-rowlog} out=${OUT:-}
export SECONDS_EACH=${SECONDS_EACH:-10} ROWS=${ROWS:-1000000} BATCH=${BATCH:-8192} CONNS=${CONNS:-4} VALUE=64

[ -x "$bench" ] || { echo "compare.sh: no $bench: make build" >&2; exit 1; }
[ -z "$out" ] || mkdir -p "$(dirname "$out")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# number FIELD prints the field of the one-line JSON object on standard input.
number() { { tr -d '\n '; echo; } | sed -n "s/.*\"$1\":\([0-9.eE+-]*\).*/\1/p"; }
# median of the lines on standard input.
median() { sort -g | awk '{v[NR] = $1} END {if (NR == 0) exit 1; print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

ours() { # what ARG…
	local what=$1
	shift
	"$bench" "$what" --rows "$ROWS" --dim 16 --batch "$BATCH" --conns "$CONNS" --keys uniform \
		--seconds "$SECONDS_EACH" --json "$@"
}

keep() { # NAME JSON
	[ -z "$out" ] || printf '{"name":"%s","commit":"%s","time":"%s","result":%s}\n' "$1" \
		"$(git describe --tags --always --dirty)" "$(date -u +%FT%TZ)" "$(tr -d '\n' <<<"$2")" >>"$out"
}

for ((round = 1; round <= rounds; round++)); do
	echo "round $round of $rounds" >&2
	pull=$(ours pull --replicas 3)
	redis=$(bench/peers/redis.sh)
	push=$(ours push --optimizer adagrad --replicas 3 --log-backend "$backend")
	keep pull "$pull"
	keep redis "$redis"
	keep push "$push"
	number rows_per_second <<<"$pull" >>"$tmp/pull"
	number mget_rows_per_second <<<"$redis" >>"$tmp/mget"
	number rows_per_second <<<"$push" >>"$tmp/push"
	number mset_wait_rows_per_second <<<"$redis" >>"$tmp/mset"
done

pull=$(median <"$tmp/pull") mget=$(median <"$tmp/mget") push=$(median <"$tmp/push") mset=$(median <"$tmp/mset")
echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ //'), $(nproc) cores, $(date -u +%F), $(git describe --tags --always --dirty)"
echo "medians of $rounds rounds of $SECONDS_EACH s: $ROWS rows of 64 B, $BATCH keys a call, $CONNS connections, uniform keys"
awk -v pull="$pull" -v mget="$mget" -v push="$push" -v mset="$mset" -v gate="$gate" 'BEGIN {
	row = "%-44s %10s %10s %7s\n"; num = "%-44s %10.3f %10.3f %6.1fx\n"
	printf row, "M rows/s", "rowraft", "redis", "ratio"
	printf num, "pull, leader / MGET", pull / 1e6, mget / 1e6, pull / mget
	printf num, "push, 3 replicas, fsync / MSET + WAIT 1", push / 1e6, mset / 1e6, push / mset
	if (gate && !(pull >= 6e6 || pull >= 6 * mget)) { print "gate: pull is below 6 M rows/s and below 6 times MGET"; bad = 1 }
	if (gate && !(push >= 1.2e6 || push >= 5 * mset)) { print "gate: push is below 1.2 M rows/s and below 5 times MSET + WAIT 1"; bad = 1 }
	exit bad
}'
