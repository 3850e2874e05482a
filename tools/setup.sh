#!/usr/bin/env bash
# setup.sh build|demo|checks: installs the Debian packages of that use that are missing; does nothing when all are there.
set -euo pipefail

use=${1:-build}
build="g++ cmake ninja-build ccache pkg-config git python3 xz-utils
  libboost1.81-dev libboost-json1.81-dev libfmt-dev libspdlog-dev libcli11-dev libeigen3-dev libpcre2-dev libutf8proc-dev
  libssl-dev libgtest-dev libgmock-dev libbenchmark-dev"
case $use in
  build) wanted=$build ;;
  demo) wanted="python3" ;;
  checks) wanted="$build clang clang-format clang-tidy libclang-rt-14-dev" ;;
  *) echo "usage: setup.sh build|demo|checks" >&2; exit 2 ;;
esac
# Any python3 with pip will do for the demo; Debian keeps pip in a package of its own.
if [ "$use" = demo ] && ! python3 -m pip --version >/dev/null 2>&1; then wanted="$wanted python3-pip"; fi

missing=()
for package in $wanted; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "error: packages are missing and this is neither root nor a machine with sudo; install: ${missing[*]}" >&2
    exit 2
  }
  as_root=(sudo)
fi
echo "== setup: installing ${#missing[@]} packages for $use: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_missing() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" \
    </dev/null >"$log" 2>&1
}
# The package lists may be absent or old (a bare container): refresh them only when the install needs it.
install_missing || { "${as_root[@]}" apt-get update -q </dev/null >"$log" 2>&1 && install_missing; } || { tail -20 "$log" >&2; exit 1; }
