#!/usr/bin/env bash
# chaos.sh BIN SEED... runs faults for a minute against real servers with each seed,
# and for SIM=3m in virtual time, and sums up. Fails if a run does, or if all together
# did too little. Even seeds have the rowlog backend, whose disks can fail, and four
# servers, so that replicas can move.
set -euo pipefail
bin=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rc=0
for seed in "$@"; do
	timeout 900 "$bin/rowraft-chaos" run --seed "$seed" --for 60s --clients 16 --servers $((4 - seed % 2)) --json "$dir/B$seed.json" || rc=$?
	timeout 900 "$bin/rowraft-chaos" run --tier A --seed "$seed" --for "${SIM:-3m}" --json "$dir/A$seed.json" || rc=$?
done
"$bin/rowraft-chaos" sum --min-kinds 35 --min-faults "$((30 * $#))" "$dir"/*.json || rc=$?
exit "$rc"
