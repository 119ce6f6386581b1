#!/usr/bin/env bash
# Installs the compilers and libraries that the build needs, if they are missing and this is root
# on Debian or Ubuntu; otherwise names them.
set -euo pipefail

declare -A package_of=(
  [g++]=g++ [cmake]=cmake [ninja]=ninja-build [protoc]=protobuf-compiler
  [ccache]=ccache [clang-format]=clang-format [ld.lld]=lld
)
missing=()
for tool in "${!package_of[@]}"; do
  command -v "$tool" >/dev/null || missing+=("${package_of[$tool]}")
done
has_header() { echo "#include <$1>" | g++ -x c++ -E - >/dev/null 2>&1; }
if command -v g++ >/dev/null; then
  has_header google/protobuf/message_lite.h || missing+=(libprotobuf-dev)
  has_header gtest/gtest.h || missing+=(libgtest-dev)
  has_header zlib.h || missing+=(zlib1g-dev)
else
  missing+=(libprotobuf-dev libgtest-dev zlib1g-dev)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

command="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing system packages; please run: sudo $command" >&2
  exit 1
fi
echo "installing system packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
$command </dev/null >/dev/null
