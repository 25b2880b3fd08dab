#!/usr/bin/env bash
# What must be looked at on a machine with a GPU, in some nine minutes and without a network: the
# tests marked `gpu`, then one GPU beside its peers. Its own Python must have torch 2.11 or newer with
# CUDA and triton; what else is missing comes from wheels in a folder.
#   scripts/gpu_check.sh [OUT] [WHEELS]
# Leaves OUT/gpu.json, with which docs/tutorials/one-gpu.md is brought up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-check} wheels=${2:-}
mkdir -p "$out"
python=${PYTHON:-python3}
if [ -n "$wheels" ]; then
    "$python" -m pip install -q --no-index --no-deps --target "$out/site" "$wheels"/*.whl
    export PYTHONPATH="$PWD/$out/site"
fi
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
"$python" -c 'import torch; assert torch.cuda.is_available(), "torch finds no GPU"'
"$python" setup.py --quiet build_ext --inplace >"$out/build.log" 2>&1 || cat "$out/build.log"
status=0
parallel=()
"$python" -c 'import xdist' 2>/dev/null && parallel=(-n 6)
timeout 270 "$python" -m pytest -m gpu tests/devices "${parallel[@]}" -p no:cacheprovider || status=$?
timeout 420 "$python" benchmarks/devices/gpu.py "$out/gpu.json" >"$out/gpu.log" 2>&1 || {
    tail -n 20 "$out/gpu.log"
    status=1
}
"$python" benchmarks/devices/gpu.py --show "$out/gpu.json"
exit $status
