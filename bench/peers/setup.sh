#!/usr/bin/env bash
# setup.sh VENV [JOBS]: the peers in a virtual environment; llama.cpp is compiled for this machine
set -eu
venv=$1 jobs=${2:-1}
python3 -m venv "$venv"
"$venv/bin/pip" install -q numpy gguf ctranslate2 openvino openvino-genai
CMAKE_BUILD_PARALLEL_LEVEL=$jobs CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAVA_BUILD=OFF" \
  "$venv/bin/pip" install -q --no-binary llama-cpp-python llama-cpp-python
