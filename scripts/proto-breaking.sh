#!/usr/bin/env bash
# proto-breaking.sh BUF compares the .proto files with those of the last release
# tag: a field number or a name that a released peer knows is never reused.
set -euo pipefail
cd "$(dirname "$0")/.."
buf=${1:?usage: proto-breaking.sh BUF}

tag=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)
if [ -z "$tag" ]; then
	echo "buf breaking: no release yet, nothing to compare with"
	exit 0
fi
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive "$tag" proto buf.yaml | tar -x -C "$old"
"$buf" breaking --against "$old"
