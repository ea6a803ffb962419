#!/usr/bin/env bash
# Installs what the lab's virtual hosts need, from Debian: QEMU, the verbs
# library with its drivers, ip and rdma. The kernel is Debian's own too; it is
# unpacked into a cache (RDMALAB_CACHE, default ~/.cache/hawser/rdmalab) and
# never installed. Nothing is done where all that is there. The last line
# printed is the kernel's folder. Fails with what to do.
set -euo pipefail
cache=${RDMALAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hawser/rdmalab}
fail() { echo "$*" >&2; exit 1; }

[ "$(uname -m)" = x86_64 ] || fail "the lab's hosts are x86_64, this machine is $(uname -m)"
command -v dpkg-deb >/dev/null && command -v apt-get >/dev/null || fail "the lab's kernel comes from Debian, and this system has no apt-get and dpkg-deb"
missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v rdma >/dev/null && command -v ip >/dev/null || missing+=(iproute2)
ls /usr/lib/*/libibverbs/librxe-rdmav*.so >/dev/null 2>&1 || missing+=(libibverbs1 ibverbs-providers)

lists() { # what apt knows, fetched at most once
	[ -z "${fetched:-}" ] || return 0
	fetched=1
	[ "$(id -u)" = 0 ] || return 0
	apt-get update -qq || fail "apt-get update failed"
}
if [ ${#missing[@]} -gt 0 ]; then
	[ "$(id -u)" = 0 ] || fail "please install them: apt-get install ${missing[*]}"
	echo "installing ${missing[*]}" >&2
	lists
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null </dev/null ||
		fail "apt-get install ${missing[*]} failed"
fi

# The kernel that Debian has now; one that was unpacked before does if apt
# knows none.
wanted() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}'; }
package=$(wanted)
if [ -z "$package" ] && [ ! -e "$cache/kernel/current" ]; then
	lists
	package=$(wanted)
	[ -n "$package" ] || fail "apt knows no linux-image-amd64: apt-get update"
fi
if [ -n "$package" ]; then
	version=$(apt-cache policy "$package" | awk '/Candidate:/ {print $2}')
	name=${package}_${version//:/}
	if [ ! -e "$cache/kernel/$name" ]; then
		mkdir -p "$cache/kernel"
		work=$(mktemp -d "$cache/unpack.XXXXXX")
		trap 'rm -rf "$work"' EXIT
		echo "fetching $package $version" >&2
		# Lists that are old name files that are no more.
		download() { (cd "$work" && rm -f ./*.deb && apt-get download -qq -o APT::Sandbox::User="$(id -un)" "$package" >/dev/null); }
		download || { lists; download; } || fail "apt-get download $package failed"
		mkdir "$work/tree"
		dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work/tree" --wildcards './boot/vmlinuz-*' \
			'./lib/modules/*/kernel/fs/'{9p,netfs,fscache,overlayfs} './lib/modules/*/kernel/net/'{9p,core,ipv4,ipv6} \
			'./lib/modules/*/kernel/crypto' './lib/modules/*/kernel/drivers/infiniband/'{core,sw} \
			'./lib/modules/*/kernel/drivers/virtio' './lib/modules/*/kernel/drivers/net/*.ko'
		mv -T "$work/tree" "$cache/kernel/$name" 2>/dev/null || [ -e "$cache/kernel/$name" ]
		find "$cache/kernel" -mindepth 1 -maxdepth 1 -type d ! -name "$name" -exec rm -rf {} +
	fi
	ln -sfn "$name" "$cache/kernel/current"
fi
echo "$cache/kernel/current"
