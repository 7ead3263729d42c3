#!/usr/bin/env bash
# plain-packages.sh lists the packages whose tests hold other code in the build without
# SIMD: those that have files of one build only, and all that depend on them. The
# tests of the others are the same in both builds.
set -euo pipefail
cd "$(dirname "$0")/.."

files() { GOEXPERIMENT=$1 go list -f '{{.ImportPath}} {{.GoFiles}} {{.SFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}' ./... | sort; }
differ=$(comm -3 <(files simd) <(files '') | awk '{print $1}' | sort -u)
[ -n "$differ" ] || { echo "plain-packages.sh: no package differs between the builds" >&2; exit 1; }
GOEXPERIMENT= go list -test -f '{{if .ForTest}}{{.ForTest}} {{join .Deps " "}}{{end}}' ./... |
	awk -v differ="$differ" 'BEGIN { n = split(differ, d, "\n") } { for (i = 1; i <= n; i++) if (index(" " $0 " ", " " d[i] " ")) { print $1; next } }' |
	sort -u
