#!/usr/bin/env bash
# canaries.sh proves that the checks can fail: it builds them together with promises
# broken on purpose (internal/canary), and each broken promise must be caught within
# its time limit of BOX=240 seconds; a busy machine needs 50. First the
# same checks run with nothing broken.
#
#   scripts/canaries.sh [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."
box=${BOX:-240}
work=$(mktemp -d)
trap 'rm -rf "$work" /dev/shm/rowraft-canary-$$' EXIT
mkdir -p /dev/shm/rowraft-canary-$$ 2>/dev/null || mkdir -p "$work/tmp"
[ -d "/dev/shm/rowraft-canary-$$" ] && export ROWRAFT_SIM_DIR=/dev/shm/rowraft-canary-$$ || export ROWRAFT_SIM_DIR=$work/tmp

# promise             package      the check that catches it: faults of e2e/sim, or a test
canaries='
ack-before-commit     e2e/sim      partition-leader,kill-leader
stale-reads           e2e/sim      partition-leader
young-claims          e2e/sim      partition-follower
map-order             e2e/sim      bridge
forget-sessions       e2e/sim      kill-leader,kill-follower
keep-deleted          e2e/sim      kill-leader,kill-follower
skip-fsync            e2e/sim      power-all,power-follower
restore-in-place      shard        TestLiesWithGoodSums|TestPullsDuringRestores
follower-misapplies   node         TestNoReplicaIsFenced
leader-misapplies     node         TestNoReplicaIsFenced
memory-rots           node         TestNoReplicaIsFenced
pipelined-appends     raftstore/transport TestReplicationIsNotPipelined
heartbeat-fast-path   raftstore/transport TestHeartbeatsTakeTheMainPath
'
# chosen prints the lines of the canaries that the arguments name, or all.
chosen() {
	[ $# -gt 0 ] || set -- '[a-z-]*'
	grep -xE "($(IFS='|'; echo "$*")) .*" <<<"$canaries" || { echo "canaries.sh: no canary $*" >&2; exit 2; }
}
canaries=$(chosen "$@")
packages=$(awk '{print $2}' <<<"$canaries" | sort -u)

for pkg in $packages; do
	go test -vet=off -tags rowraft_canary -c -o "$work/$(basename "$pkg").test" "./$pkg"
done

# check CANARY PACKAGE WHAT SEED runs one check; its output is in $work/log.
check() {
	local args=(-test.run "^($3)\$" -test.count 1)
	[ "$2" = e2e/sim ] && args=(-test.run '^TestSeeds$' -sim.seed "$4" -sim.seeds 1 -sim.for 20s -sim.faults "$3")
	(cd "$2" && ROWRAFT_CANARY=$1 timeout "$box" "$work/$(basename "$2").test" "${args[@]}") >"$work/log" 2>&1
}

failed=0
# With nothing broken, all that catches something passes: one run of each package.
for pkg in $packages; do
	separator='|'
	[ "$pkg" = e2e/sim ] && separator=,
	all=$(awk -v pkg="$pkg" '$2 == pkg {print $3}' <<<"$canaries" | tr "$separator" '\n' | sort -u | paste -sd "$separator")
	if ! check "" "$pkg" "$all" 1; then
		echo "$pkg: $all fails though nothing is broken:" >&2
		tail -20 "$work/log" >&2
		failed=1
	fi
done
while read -r name pkg what; do
	start=$SECONDS seed=0 caught='' sign='^--- FAIL'
	[ "$pkg" = e2e/sim ] && sign='WRONG:'
	while [ -z "$caught" ] && [ $((SECONDS - start)) -lt "$box" ]; do
		seed=$((seed + 1))
		rc=0
		check "$name" "$pkg" "$what" "$seed" || rc=$?
		# A test that merely ran out of time has caught nothing.
		if [ "$rc" -eq 1 ]; then caught=$(grep -E "$sign" "$work/log" | grep -v -m1 'too little happened' || true); fi
		[ "$pkg" = e2e/sim ] || break
	done
	if [ -n "$caught" ]; then
		printf '%-20s caught after %2d s (seed %d): %.150s\n' "$name" $((SECONDS - start)) "$seed" "$(sed 's/^ *[a-z_]*.go:[0-9]*: //' <<<"$caught")"
	else
		printf '%-20s NOT CAUGHT within %d s (%d seeds)\n' "$name" "$box" "$seed" >&2
		tail -5 "$work/log" >&2
		failed=1
	fi
done <<<"$canaries"
exit $failed
