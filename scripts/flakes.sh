#!/usr/bin/env bash
# flakes.sh finds tests that fail sometimes: it repeats a package's tests, WIDE runs
# concurrently, so that the machine is busy, and keeps the output of failed runs.
#
#   scripts/flakes.sh ./node                    3 rounds, 4 concurrent runs
#   ROUNDS=10 WIDE=8 RUN='TestMove' scripts/flakes.sh ./node ./scheduler
#   RACE=1 scripts/flakes.sh ./e2e              under the race detector
#   TARDY=7 scripts/flakes.sh ./client          goroutines are late (scripts/tardy); each
#                                               run has its own seed, from 7 on
#   STALL=7 scripts/flakes.sh ./node            suspends a process of each run, the test or one
#                                               that it started, at times for up to 3 s; each
#                                               run has its own seed, from 7 on
#   TARDY=7 ROUNDS=1 WIDE=1 ROWRAFT_TARDY_ONLY=client/route.go:120 RUN=TestX scripts/flakes.sh ./client
#
# It prints each failed test and the seed of its run; the points that slept are in a file
# next to its output. It exits with 1 if a test failed.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${OUT:-$(mktemp -d /tmp/flakes.XXXXXX)}
mkdir -p "$out"
flags=()
[ -z "${RACE:-}" ] || flags=(-race "-gcflags=github.com/gomlx/compute/...=-d=checkptr=0")
if [ -n "${TARDY:-}" ]; then
	go run ./scripts/tardy "$out/tardy"
	export GOFLAGS="${GOFLAGS:-} -overlay=$out/tardy/overlay.json" # also what tests build
fi
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
failed=0 seed=${TARDY:-${STALL:-0}}

# family PID prints PID and the processes that it started.
family() {
	echo "$1"
	for child in $(pgrep -P "$1"); do family "$child"; done
}

# stall PID SEED repeatedly suspends a process of PID's family and resumes it, until PID has ended.
stall() {
	local pids victim=$1
	trap 'kill -CONT "$victim" 2>/dev/null || true' EXIT
	RANDOM=$2
	while sleep "$((RANDOM % 3)).$((RANDOM % 10))" && kill -0 "$1" 2>/dev/null; do
		read -ra pids <<<"$(family "$1" | tr '\n' ' ')"
		victim=${pids[RANDOM % ${#pids[@]}]}
		! grep -q '^State:.T' "/proc/$victim/status" 2>/dev/null || continue # the test itself suspended it
		kill -STOP "$victim" 2>/dev/null || continue
		sleep "$((RANDOM % 3)).$((RANDOM % 10))"
		kill -CONT "$victim" 2>/dev/null || true
	done
}

for pkg in "$@"; do
	name=$(echo "${pkg#./}" | tr / -)
	go test -c "${flags[@]}" -o "$out/$name.test" "$pkg"
	for round in $(seq "${ROUNDS:-3}"); do
		pids=()
		for i in $(seq "${WIDE:-4}"); do
			log=$out/$name.$round.$i.log
			points=${log%.log}.points
			(cd "$pkg" && ROWRAFT_TARDY_SEED=$seed ROWRAFT_TARDY_LOG=$points exec "$out/$name.test" -test.timeout 20m -test.run "${RUN:-.}" -test.skip "${SKIP:-^$}" >"$log" 2>&1) &
			pids+=("$! $log $seed")
			[ -z "${STALL:-}" ] || stall "$!" "$seed" &
			seed=$((seed + 1))
		done
		for p in "${pids[@]}"; do
			read -r pid log with <<<"$p"
			if wait "$pid"; then
				rm -f "$log" "${log%.log}.points"
			else
				failed=1
				echo "$pkg, round $round${TARDY:+, TARDY=$with}${STALL:+, STALL=$with}: $log"
				grep -hE '^ *--- FAIL|^panic:|DATA RACE' "$log" || tail -n 3 "$log"
			fi
		done
	done
done
if [ "$failed" = 0 ]; then
	rm -r "$out"
	echo "flakes.sh: nothing failed"
fi
exit "$failed"
