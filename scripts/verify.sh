#!/usr/bin/env bash
# verify.sh runs every gate of the project in the order that fails fastest, and
# prints how long each took. It leaves the workspace as it found it; where it
# was clean, `git status --porcelain` is empty afterwards too.
#
#   scripts/verify.sh [--full]
#
# --full runs the stages test-plain, race and arm64 over everything, and then fuzzing
# (FUZZTIME=30s for each target) and a soak (MIN=30 minutes): some hours.
#
# SKIP="race demo" leaves stages out, for a run at the desk; CI skips none.
set -euo pipefail
cd "$(dirname "$0")/.."

full=
case "${1:-}" in
'') ;;
--full) full=1 ;;
*) echo "verify.sh: unknown argument $1" >&2; exit 2 ;;
esac

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
stage build build
stage build-plain build-plain
stage lint lint
stage gen-check gen-check
stage mod-check mod-check
stage test test-simd
if [ -z "$full" ]; then
	stage test-plain test-plain
	stage race race
else
	stage test-plain test-plain PLAIN_PKG="$(scripts/plain-packages.sh | grep -v '/e2e$' | tr '\n' ' ')"
	stage race race RACE_PKG=./...
	stage arm64 arm64 ARGS=--all
	stage fuzz fuzz FUZZTIME="${FUZZTIME:-30s}"
fi
stage canaries canaries
stage demo demo
stage chaos chaos
stage bench-smoke bench-smoke
stage failover bench-failover-smoke
[ -z "$full" ] || stage soak soak MIN="${MIN:-30}"

if [ "$(fingerprint)" != "$before" ]; then
	echo "verify: a stage changed the workspace:" >&2
	git status --porcelain >&2
	exit 1
fi
