#!/usr/bin/env bash
# gotest.sh ARGS...: go test, with every skipped test printed and counted, and
# the whole output kept when something fails.
set -uo pipefail
dir=${HAWSER_STEPS:-.tmp/steps}
mkdir -p "$dir"
log=$dir/gotest.json
go test -json -timeout 10m "$@" >"$log"
rc=$?
go run ./test/testlog "$log" "$dir/skipped" || rc=1
exit $rc
