#!/usr/bin/env bash
# verify.sh runs every gate of the project in the order that fails fastest, and
# prints how long each took. It leaves the workspace as it found it; where it
# was clean, `git status --porcelain` is empty afterwards too.
#
# SKIP="race demo" leaves stages out, for a run at the desk; CI skips none.
set -euo pipefail
cd "$(dirname "$0")/.."

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
stage test-plain test-plain
stage arm64 arm64
stage race race
stage canaries canaries
stage fuzz fuzz FUZZTIME="${FUZZTIME:-3s}"
stage demo demo
stage chaos chaos
stage bench-smoke bench-smoke
stage failover bench-failover-smoke

if [ "$(fingerprint)" != "$before" ]; then
	echo "verify: a stage changed the workspace:" >&2
	git status --porcelain >&2
	exit 1
fi
