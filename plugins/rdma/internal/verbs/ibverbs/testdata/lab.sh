#!/usr/bin/env bash
# Runs this package's tests on Soft-RoCE in two virtual hosts:
#
#   testdata/lab.sh LAB OUT [test arguments]
#
# LAB boots the hosts: LAB OUT GUEST_SCRIPT NODES.
set -euo pipefail
lab=${1:?LAB} out=$(realpath -m "${2:?OUT}")
shift 2
here=$(dirname "$(realpath "$0")")
mkdir -p "$out"
rm -f "$out/done"
(cd "$here/.." && go test -c -o "$out/ibverbs.test" .)
echo "$out/ibverbs.test" >"$out/binary"
echo "${*:--test.v}" >"$out/args"
"$lab" "$out" "$here/guest.sh" 2
