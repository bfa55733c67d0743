#!/usr/bin/env bash
# What only a machine with a GPU can show. Builds nothing: takes the programs from $BIN and Python
# from $KERNELZERO_PYTHON. Writes its tables into $OUT and prints their last lines.
# KERNELZERO_JUDGE_CASES may name a further folder of cases.
set -uo pipefail
BIN=${BIN:?the folder of kernelzero}
OUT=${OUT:?a folder for the tables}
: "${KERNELZERO_PYTHON:?a Python with torch, triton and nvcc}"
here=$(cd "$(dirname "$0")/../.." && pwd)
lib=$(dirname "$(dirname "$KERNELZERO_PYTHON")")/lib
export LD_LIBRARY_PATH=$(echo "$lib"/python3*/site-packages/torch/lib)
host=$(mktemp)
printf 'judges = %d\ndevice = "cuda:0"\n' "$(nproc)" > "$host"
failed=0
run() {
    local name=$1
    shift
    "$BIN/kernelzero" --host "$host" "$@" > "$OUT/$name.txt" 2>&1 || failed=1
    grep '^BAD' "$OUT/$name.txt" | cut -c1-200
    echo "$name: $(tail -1 "$OUT/$name.txt" | cut -c1-160)"
}
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader
run doctor doctor
run own-strict judge-cases "$here/gpu/keck/tests/cases" --timing
if [ -n "${KERNELZERO_JUDGE_CASES:-}" ]; then
    run corpus-strict judge-cases "$KERNELZERO_JUDGE_CASES" --timing
    run corpus-paper judge-cases "$KERNELZERO_JUDGE_CASES" --profile paper
fi
left=$(pgrep -fc zygote.py || true)
echo "processes left: $left"
rm -f "$host"
[ "$left" = 0 ] && [ "$failed" = 0 ]
