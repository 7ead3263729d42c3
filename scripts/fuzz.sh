#!/usr/bin/env bash
# fuzz.sh TIME runs every fuzz target of the module for TIME (10s), one after
# the other. A finding is written to the package's testdata/fuzz by go test:
# commit it with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:?usage: fuzz.sh TIME}

count=0
for dir in $(git grep -l --untracked '^func Fuzz' -- '*_test.go' | xargs -r -n1 dirname | sort -u); do
	listing=$(go test -list '^Fuzz' "./$dir") # apart, so that a package that does not build fails here
	for target in $(grep '^Fuzz' <<<"$listing"); do
		echo "--- ./$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" -timeout 10m "./$dir"
		count=$((count + 1))
	done
done
[ "$count" -gt 0 ] || { echo "fuzz.sh: no fuzz target found" >&2; exit 1; }
echo "$count fuzz targets, $fuzztime each"
