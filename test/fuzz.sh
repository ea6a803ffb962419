#!/usr/bin/env bash
# fuzz.sh TIME: runs every fuzz target for TIME.
set -euo pipefail
for pkg in $(go list ./...); do
	for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "== $pkg $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$pkg"
	done
done
