#!/usr/bin/env bash
# soak.sh MINUTES BIN LEDGER runs faults of every kind for so long, in runs of some
# minutes that differ in seed, log backend, shards and servers. Each adds a line to
# the ledger. FIRST_SEED=101; a run that finds something keeps its directory, and the
# others go on.
set -euo pipefail
minutes=$1 bin=$2 ledger=$3
each=6
rc=0 seed=${FIRST_SEED:-101}
end=$((SECONDS + minutes * 60))
while [ "$SECONDS" -lt "$end" ]; do
	left=$(((end - SECONDS + 59) / 60))
	length=$((left < each ? left : each))
	shards=$((seed % 3 * 2 + 2)) # 2, 4 or 6
	servers=3
	[ $((seed % 4)) -ne 3 ] || servers=5
	"$bin/rowraft-chaos" run --seed "$seed" --for "${length}m" --clients 24 --rate 200 --shards "$shards" \
		--servers "$servers" --ledger "$ledger" || { rc=$?; [ "$rc" -eq 3 ] || exit "$rc"; }
	seed=$((seed + 1))
done
exit "$rc"
