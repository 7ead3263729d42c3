#!/usr/bin/env bash
# verify.sh runs the checks of CI, those that fail fastest first, and prints how
# long each took. It leaves the workspace as it found it: if `git status --porcelain`
# was empty before, it is empty afterwards.
#
#   scripts/verify.sh [--full]
#
# --full is for a release and takes hours. It adds the e2e tests that only run before a
# release (docs/testing.md), more seeds of simulation and chaos, the Python package as a
# wheel and with a current PyTorch (5.5 GB), every package without SIMD and under the
# race detector, arm64, the benchmarks that must keep running, fuzzing (FUZZTIME=30s for
# each target) and a soak (MIN=30 minutes).
#
# SKIP="race documents" leaves stages out, for a run at the desk; CI skips none.
set -euo pipefail
cd "$(dirname "$0")/.."

full=
case "${1:-}" in
'') ;;
--full) full=1 ;;
*) echo "verify.sh: unknown argument $1" >&2; exit 2 ;;
esac

if [ -n "$full" ] && ! command -v redis-server >/dev/null; then
	echo "verify.sh: --full needs redis-server, the peer of bench-smoke: apt install redis-server" >&2
	exit 1
fi

fingerprint() { { git status --porcelain; git diff HEAD; } | sha256sum; }

names=() seconds=()
summary() {
	printf '\n%-12s %8s\n' stage seconds
	for i in "${!names[@]}"; do printf '%-12s %8s\n' "${names[i]}" "${seconds[i]}"; done
	printf '%-12s %8s\n' total "$SECONDS"
}
trap summary EXIT

stage() {
	local name=$1 start=$SECONDS rc=0
	shift
	case " ${SKIP:-} " in *" $name "*) echo "=== $name: skipped"; return ;; esac
	echo "=== $name: make $*"
	make --no-print-directory "$@" || rc=$?
	names+=("$name")
	seconds+=("$((SECONDS - start))")
	[ "$rc" -eq 0 ] || { seconds[-1]+=" FAILED"; exit "$rc"; }
}

before=$(fingerprint)
stage build build-faults
stage lint lint
stage gen-check gen-check
stage mod-check mod-check
if [ -n "$full" ]; then
	export ROWRAFT_E2E=all
	stage build-plain build-plain
fi
stage test test
stage test-python test-python
if [ -z "$full" ]; then
	stage test-plain test-plain
	stage race race
	stage canaries canaries
	stage documents documents # runs the demo, too
	stage chaos chaos CHAOS_SEEDS="2 3"
else
	stage python-torch test-python-torch
	stage test-wheel test-wheel
	stage test-plain test-plain PLAIN_PKG="$(scripts/plain-packages.sh | tr '\n' ' ')"
	stage race race RACE_SKIP= RACE_PKG="$(go list ./... | grep -v '/e2e$' | tr '\n' ' ')"
	stage sim sim
	stage canaries canaries
	stage demo demo
	stage chaos chaos
	stage arm64 arm64 ARGS=--all
	stage bench bench BENCHTIME=1x
	stage bench-smoke bench-smoke
	stage failover bench-failover-smoke
	stage fuzz fuzz FUZZTIME="${FUZZTIME:-30s}"
	stage soak soak MIN="${MIN:-30}"
fi

if [ "$(fingerprint)" != "$before" ]; then
	echo "verify: a stage changed the workspace:" >&2
	git status --porcelain >&2
	exit 1
fi
