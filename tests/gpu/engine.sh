#!/usr/bin/env bash
# The generation engine on a machine with a GPU: every kernel against float64, decoding against one
# forward pass, decoding speed of a 7B shape with random weights, and transformers on the same shape.
# Builds nothing: takes the program from $BIN and Python from $KERNELZERO_PYTHON. Writes into $OUT,
# prints a short table. With arguments only those parts: check, bench, transformers.
set -uo pipefail
BIN=${BIN:?the folder of kernelzero-engine}
OUT=${OUT:?a folder for the tables}
: "${KERNELZERO_PYTHON:?a Python with torch 2.11 for CUDA}"
here=$(cd "$(dirname "$0")/../.." && pwd)
lib=$(dirname "$(dirname "$KERNELZERO_PYTHON")")/lib
export LD_LIBRARY_PATH=$(echo "$lib"/python3*/site-packages/torch/lib)
failed=0
wanted() { [ $# -eq 1 ] || [[ " ${*:2} " == *" $1 "* ]]; }
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader
if wanted check "$@"; then
    "$BIN/kernelzero-engine" check-kernels --model "$here/configs/policies/coder" \
        --model "$here/configs/policies/proposer" > "$OUT/check.txt" 2>&1 || failed=1
    cat "$OUT/check.txt"
fi
if wanted bench "$@"; then
    "$BIN/kernelzero-engine" bench-generate --batch "${BATCH:-1,16,64,256}" --mixed "${MIXED:-320}" \
        > "$OUT/generate.jsonl" 2> "$OUT/generate.err" || failed=1
    tail -3 "$OUT/generate.err"
    "$KERNELZERO_PYTHON" - "$OUT/generate.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    if "batch" in r:
        print(f"batch {r['batch']:4}  {r['tokens_per_second']:9.1f} tok/s  {r['milliseconds_per_step']:7.3f} ms"
              f"  {100 * r['roofline_share']:5.1f} % of roofline  prefill {r['prefill_tokens_per_second']:8.0f} tok/s"
              f"  {r['memory'] / 1e9:6.1f} GB")
    else:
        print(f"mixed {r['mixed']}  {r['tokens']} tokens in {r['seconds']:.1f} s"
              f"  {r['tokens_per_second']:.1f} tok/s  {r['memory'] / 1e9:.1f} GB")
PY
fi
if wanted transformers "$@"; then
    "$KERNELZERO_PYTHON" "$here/benches/engine/transformers_generate.py" --batch "${TRANSFORMERS_BATCH:-1,64}" \
        > "$OUT/transformers.jsonl" 2> "$OUT/transformers.err" || { failed=1; tail -3 "$OUT/transformers.err"; }
    cat "$OUT/transformers.jsonl"
fi
[ "$failed" = 0 ]
