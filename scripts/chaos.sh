#!/usr/bin/env bash
# chaos.sh BIN SEED... runs faults against real servers for a minute with each seed,
# and in virtual time for ten with each, and sums up. Fails if a run does.
set -euo pipefail
bin=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rc=0
for seed in "$@"; do
	timeout 200 "$bin/rowraft-chaos" run --seed "$seed" --for 60s --clients 16 --json "$dir/B$seed.json" || rc=$?
	timeout 200 "$bin/rowraft-chaos" run --tier A --seed "$seed" --for "${SIM:-5m}" --json "$dir/A$seed.json" || rc=$?
done
"$bin/rowraft-chaos" sum "$dir"/*.json || rc=$?
exit "$rc"
