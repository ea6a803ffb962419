#!/usr/bin/env bash
# Installs what a fresh Debian 12 with Go lacks for the build and the tests: a
# C compiler for the race detector, libibverbs' headers for the rdma plugin (the
# library itself is opened at run time), and git for the version. Nothing is done
# where they are there.
set -euo pipefail
missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v git >/dev/null || missing+=(git)
[ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
if [ ${#missing[@]} -gt 0 ]; then
	echo "installing ${missing[*]}"
	if [ "$(id -u)" != 0 ]; then
		echo "please install them: apt-get install ${missing[*]}" >&2
		exit 1
	fi
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
if ! command -v go >/dev/null; then
	echo "Go 1.26 or later is needed on PATH" >&2
	exit 1
fi
