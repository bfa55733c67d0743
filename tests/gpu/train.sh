#!/bin/sh
# Training on a GPU: gradients against a CPU's, then steps of a 7B shape beside transformers.
# BIN: the folder with kernelzero-engine (and, if it is there, the test program `packing`).
# KERNELZERO_PYTHON: a Python with torch 2.11 and transformers. OUT: where results go.
# TOKENS, SEQUENCE: of a pack (16384) and of a sequence (4096). Parts: $1, or all.
set -u
PY=${KERNELZERO_PYTHON:-python3}
LIB=$("$PY" -c 'import os, torch; print(os.path.dirname(torch.__file__) + "/lib")')
export LD_LIBRARY_PATH="$LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTORCH_ALLOC_CONF=expandable_segments:True
HERE=$(cd "$(dirname "$0")/../.." && pwd)
OUT=${OUT:-.}
BENCH="--tokens ${TOKENS:-16384} --sequence ${SEQUENCE:-4096}"
bad=0

check() {
  [ -x "$BIN/packing" ] || return 0
  CARGO_MANIFEST_DIR=$HERE/gpu/policy "$BIN/packing" --ignored --nocapture 2>&1 | tee "$OUT/train-check.txt"
  grep -q 'test result: ok' "$OUT/train-check.txt" || bad=1
}
own() {
  "$BIN/kernelzero-engine" bench-train $BENCH --steps 3 2>&1 | tee "$OUT/train-own.jsonl"
  "$BIN/kernelzero-engine" bench-train $BENCH --steps 2 --packs 4 2>&1 | tee -a "$OUT/train-own.jsonl"
}
peer() {
  "$PY" "$HERE/benches/engine/transformers_train.py" $BENCH --steps 3 2>&1 | tee "$OUT/train-peer.jsonl"
}

case ${1:-all} in
  all) check; own; peer ;;
  *) "$1" ;;
esac
exit $bad
