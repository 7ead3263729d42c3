#!/usr/bin/env bash
# gen.sh OUT PLUGIN… writes the Go code of every .proto file under OUT.
# gen.sh --check PLUGIN… compares it with what is committed under proto/ instead.
# A comment naming the version of protoc itself is not a difference.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: gen.sh OUT|--check protoc-gen-go protoc-gen-go-grpc}
go=$2 grpc=$3
command -v protoc >/dev/null || { echo "gen.sh: no protoc: apt-get install protobuf-compiler" >&2; exit 1; }

check=
if [ "$out" = --check ]; then
	check=1
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
fi

mapfile -t sources < <(cd proto && find . -name '*.proto' | sed 's|^\./||' | sort)
protoc -I proto \
	--plugin=protoc-gen-go="$go" --go_out="$out" --go_opt=paths=source_relative \
	--plugin=protoc-gen-go-grpc="$grpc" --go-grpc_out="$out" --go-grpc_opt=paths=source_relative \
	"${sources[@]}"

[ -n "$check" ] || exit 0
bad=
while read -r f; do
	diff -u -I '^// .*protoc  *v' "proto/$f" "$out/$f" || bad=1
done < <({ (cd proto && find . -name '*.pb.go'); (cd "$out" && find . -name '*.pb.go'); } | sort -u)
[ -z "$bad" ] || { echo "gen.sh: generated code differs from what is committed: make gen" >&2; exit 1; }
