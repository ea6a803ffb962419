#!/bin/bash
# Runs what `make gpu-test` has built, on a machine with two GPUs and without Go:
#
#	bin/gpu/run.sh [folder for the logs [parts]]
#
# The logs are two files, all.log and doctor.json. Parts are names of runs below,
# in one word; without any all are run.
#
# It needs what lies beside it and nothing else: the stripped test binaries and
# the plugins, packed. It takes less than ten minutes, and ends with a table: what ran,
# how long it took, what was skipped, and the speed. It fails if a test has failed.
set -u
packed=$(cd "$(dirname "$0")" && pwd)
logs=${1:-${OUT:-$packed/logs}}
chosen=${2:-}
mkdir -p "$logs"
here=$(mktemp -d)  # the binaries
parts=$(mktemp -d) # a log for each part, until they are put together
trap 'rm -rf "$here" "$parts"' EXIT
for file in "$packed"/*.gz; do
	name=$(basename "$file" .gz)
	gunzip -c "$file" >"$here/$name" && chmod +x "$here/$name" || exit 1
done
: >"$logs/all.log"
export HAWSER_GPU_TEST=1 HAWSER_MNNVL_PLUGIN=$here/hawser-mnnvl HAWSER_SCENARIO_BIN=$here
failed=0
summary=()

# all is how long the whole may take, in seconds.
all=560 rows=200
[ -z "${HAWSER_LONG:-}" ] || all=900 rows=450

# part NAME SECONDS BINARY FLAGS...: one run, for so long at most.
part() {
	local name=$1 limit=$2 binary=$3
	shift 3
	[ -z "$chosen" ] || [[ " $chosen " == *" $name "* ]] || return 0
	local began=$SECONDS state=ok left=$((all - SECONDS))
	[ "$limit" -le "$left" ] || limit=$left
	if [ "$limit" -lt 10 ]; then
		failed=1
		summary+=("$(printf '%-14s | %-12s' "$name" "NO TIME LEFT")")
		return
	fi
	echo "== $name"
	(cd "$here" && timeout -k 5 "$limit" "./$binary" -test.v -test.timeout "$((limit - 3))s" "$@") </dev/null >"$parts/$name.log" 2>&1
	local rc=$?
	{
		echo "######## $name ($rc)"
		cat "$parts/$name.log"
	} >>"$logs/all.log"
	if [ $rc -ne 0 ]; then
		state="FAILED ($rc)" failed=1
		grep -nE -- '--- FAIL|panic:|_test\.go:[0-9]+:|cases_|fatal' "$parts/$name.log" | head -20
		echo "-- the end of it:"
		tail -n 15 "$parts/$name.log"
	fi
	local passed skipped
	passed=$(grep -cE -- '--- PASS' "$parts/$name.log")
	skipped=$(grep -cE 'SKIPPED' "$parts/$name.log")
	summary+=("$(printf '%-14s | %-12s | %4d s | %3d passed | %2d skipped' "$name" "$state" $((SECONDS - began)) "$passed" "$skipped")")
}

echo "== GPUs"
nvidia-smi --query-gpu=index,name,driver_version,compute_mode --format=csv 2>/dev/null || echo "nvidia-smi does not answer"
"$here/hawser-mnnvl" --doctor </dev/null >"$logs/doctor.json" 2>"$parts/doctor.err" || echo "doctor: $(head -3 "$parts/doctor.err")"
cat "$logs/doctor.json"
echo

part speed 90 mnnvl.test -test.run 'TestSpeed'
part speed-engine 90 scenarios.test -test.run 'TestSpeedOfGPUs'
part mapping 60 mnnvl.test -test.run 'NONE' -test.bench 'MappingHit' -test.benchtime 200000x
part event 45 mnnvl.test -test.run 'TestEventRounds|TestWaitsForTheEvent'
part hops 30 mnnvl.test -test.run 'TestToldOnTheThread|TestStaysAwake'
part helper 45 cuda.test
part kvtransfer 60 kvtransfer.test
part stale 45 mnnvl.test -test.run 'TestNewDescriptor|TestAddressOnly|TestWarmWorkers|TestHandover|TestReach'
part killed 45 mnnvl.test -test.run 'TestKilledMidWrite'
part cycles 60 mnnvl.test -test.run 'TestAgainAndAgain'
part scenarios "$rows" scenarios.test -test.run 'Test(GPU)?(Memory|Scenario(29|4))/^mnnvl'
part suite 120 mnnvl.test -test.run 'TestConformance$'
part suite-ipc 100 mnnvl.test -test.run 'TestConformanceOfTheBinary/ipc/move-(bytes|kinds|read-only|withdraw|announce)'
part suite-fd 100 mnnvl.test -test.run 'TestConformanceOfTheBinary/fd/move-(bytes|kinds|withdraw|end-stops|transport)'
part libcuda 90 libcuda.test -test.run 'TestTable'
part calls 30 libcuda.test -test.run 'NONE' -test.bench 'Calls/(hop|copy.*[46] KiB|query)' -test.benchtime 1000x
part nvml 20 nvml.test

echo
echo "== skipped"
grep -hE 'SKIPPED' "$parts"/*.log | sed 's/^ *//' | sort | uniq -c
echo
echo "== speed"
grep -hE '^SPEED' "$parts"/*.log
grep -hE 'the thread has slept' "$parts"/*.log | sed 's/^ *//'
grep -hE '^Benchmark' "$parts"/*.log
echo
echo "== scenarios"
grep -hE '_test\.go:[0-9]+:|--- PASS: [^/]*$' "$parts"/scenarios.log 2>/dev/null | sed 's/^ *//'
echo
echo "== all ($SECONDS s)"
printf '%s\n' "${summary[@]}"
exit $failed
