#!/usr/bin/env bash
# timed.sh NAME COMMAND...: run one step of `make test`, print how long it took
# and remember it. timed.sh --summary prints all steps and what was skipped.
set -u
dir=${HAWSER_STEPS:-.tmp/steps}
mkdir -p "$dir"
if [ "${1:-}" = --summary ]; then
	echo "== steps"
	cat "$dir/times"
	if [ -s "$dir/skipped" ]; then
		echo "== skipped"
		cat "$dir/skipped"
	fi
	rm -rf "$dir"
	exit 0
fi
name=$1
shift
[ "$name" = deps ] && rm -f "$dir/times" "$dir/skipped"
echo "== $name"
start=$SECONDS
"$@"
rc=$?
printf '%-16s %4d s\n' "$name" $((SECONDS - start)) | tee -a "$dir/times"
exit $rc
