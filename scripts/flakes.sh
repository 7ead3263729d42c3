#!/usr/bin/env bash
# flakes.sh finds tests that fail now and then: it runs a package's tests again and
# again, WIDE of them beside each other, so that the machine is busy, and keeps the
# output of those that failed.
#
#   scripts/flakes.sh ./node                    3 rounds, 4 beside each other
#   ROUNDS=10 WIDE=8 RUN='TestMove' scripts/flakes.sh ./node ./scheduler
#   RACE=1 scripts/flakes.sh ./e2e              under the race detector
#
# It prints each failed test with its count, and exits with 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${OUT:-$(mktemp -d /tmp/flakes.XXXXXX)}
mkdir -p "$out"
flags=()
[ -z "${RACE:-}" ] || flags=(-race "-gcflags=github.com/gomlx/compute/...=-d=checkptr=0")
failed=0
for pkg in "$@"; do
	name=$(echo "${pkg#./}" | tr / -)
	go test -c "${flags[@]}" -o "$out/$name.test" "$pkg"
	for round in $(seq "${ROUNDS:-3}"); do
		pids=()
		for i in $(seq "${WIDE:-4}"); do
			log=$out/$name.$round.$i.log
			(cd "$pkg" && exec "$out/$name.test" -test.timeout 20m -test.run "${RUN:-.}" -test.skip "${SKIP:-^$}" >"$log" 2>&1) &
			pids+=("$! $log")
		done
		for p in "${pids[@]}"; do
			if wait "${p%% *}"; then
				rm "${p#* }"
			else
				failed=1
				echo "$pkg, round $round: ${p#* }"
				grep -hE '^ *--- FAIL|^panic:|DATA RACE' "${p#* }" || tail -n 3 "${p#* }"
			fi
		done
	done
done
if [ "$failed" = 0 ]; then
	rm -r "$out"
	echo "flakes.sh: nothing failed"
fi
exit "$failed"
