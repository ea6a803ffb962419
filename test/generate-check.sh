#!/usr/bin/env bash
# Regenerates the protobuf code and fails if that changed a file.
set -euo pipefail
sum() { find . -name '*.pb.go' -not -path './.tmp/*' -print0 | sort -z | xargs -0 sha256sum; }
before=$(sum)
go run ./test/protogen
after=$(sum)
if [ "$before" != "$after" ]; then
	diff <(echo "$before") <(echo "$after") || true
	echo "the protobuf code was not up to date: commit what \`make generate\` made" >&2
	exit 1
fi
echo "the protobuf code is up to date"
