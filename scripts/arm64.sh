#!/usr/bin/env bash
# arm64.sh runs what must give the same bits on every processor as arm64 would: tests
# of the packages that compute rows, cross-compiled, under qemu-user. Without
# qemu-aarch64-static it tries to install it, and skips with a message if it cannot.
#
#   scripts/arm64.sh [--all]      --all: every test of these packages, 10 minutes
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v qemu-aarch64-static >/dev/null; then
	sudo=
	[ "$(id -u)" = 0 ] || sudo="sudo -n"
	{ $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends qemu-user-static; } >/dev/null 2>&1 || true
fi
command -v qemu-aarch64-static >/dev/null || {
	echo "arm64: skipped: qemu-aarch64-static is not here and does not install (apt-get install qemu-user-static)"
	exit 0
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# package        tests that compare bits
tests='
optim            Bits|Golden|Init|NaN|TestUpdate$
wire             Golden|BFloat16|Hash
clustermap       .
shard            Golden|TestOldLogReplays
shard/rowstore   Golden
e2e/reference    TestGoldenDigests
'
# qemu lets a load pass the atomic store before it, which arm64 does not.
skip=TestReaderAndWriterAreNeverInOneSlot
while read -r pkg run; do
	[ -n "$pkg" ] || continue
	[ "${1:-}" = --all ] && run=.
	name=$work/$(basename "$pkg").test
	GOOS=linux GOARCH=arm64 GOEXPERIMENT='' CGO_ENABLED=0 go test -c -o "$name" "./$pkg"
	start=$SECONDS
	(cd "$pkg" && qemu-aarch64-static "$name" -test.run "$run" -test.skip "$skip" -test.v -test.timeout 10m) >"$work/log" 2>&1 || {
		echo "arm64: $pkg fails:" >&2
		grep -v '^=== ' "$work/log" | tail -40 >&2
		exit 1
	}
	n=$(grep -c '^--- PASS' "$work/log" || true)
	[ "$n" -gt 0 ] || { echo "arm64: no test of $pkg matches $run" >&2; exit 1; }
	echo "arm64: $pkg: $n tests in $((SECONDS - start)) s"
done <<<"$tests"
