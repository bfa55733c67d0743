#!/bin/sh
# Training on a GPU: gradients against a CPU's, then steps of a 7B shape beside transformers.
# BIN: the folder with kernelzero-engine (and, if they are there, the test programs `packing` and `exact`).
# KERNELZERO_PYTHON: a Python with torch 2.11 and transformers. OUT: where results go.
# TOKENS, SEQUENCE: of a pack (16384) and of a sequence (4096). Parts: $1, or all. `ranks`, not among all,
# needs two GPUs: losses of 20 steps on one and on two, the speed of both, and a rank killed in mid-step.
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
  for tests in packing exact; do
    [ -x "$BIN/$tests" ] || continue
    CARGO_MANIFEST_DIR=$HERE/gpu/policy "$BIN/$tests" --ignored --nocapture 2>&1 | tee "$OUT/check-$tests.txt"
    grep -q 'test result: ok' "$OUT/check-$tests.txt" || bad=1
  done
}
own() {
  "$BIN/kernelzero-engine" bench-train $BENCH --steps 3 2>&1 | tee "$OUT/train-own.jsonl"
  "$BIN/kernelzero-engine" bench-train $BENCH --steps 2 --packs 4 2>&1 | tee -a "$OUT/train-own.jsonl"
}
peer() {
  "$PY" "$HERE/benches/engine/transformers_train.py" $BENCH --steps 3 2>&1 | tee "$OUT/train-peer.jsonl"
}

small() {
  "$BIN/kernelzero-engine" bench-train --shape qwen2-0.5b --tokens 4096 --sequence 1024 --steps 20 --lr 1e-4 "$@"
}
ranks() {
  two=cuda:0,cuda:1
  # The same two packs a step: both on one GPU, one on each.
  small --ranks cuda:0 --packs 2 2>&1 | tee "$OUT/ranks-curve-1.jsonl"
  small --ranks $two --packs 1 2>&1 | tee "$OUT/ranks-curve-2.jsonl"
  "$PY" "$HERE/benches/engine/ranks.py" curve "$OUT/ranks-curve-1.jsonl" "$OUT/ranks-curve-2.jsonl" || bad=1
  for packs in 1 4; do
    for devices in cuda:0 $two; do
      "$BIN/kernelzero-engine" bench-train $BENCH --steps 4 --packs $packs --ranks $devices 2>&1
    done
  done | tee "$OUT/ranks-speed.jsonl"
  "$PY" "$HERE/benches/engine/ranks.py" speed "$OUT/ranks-speed.jsonl" || bad=1
  [ -x "$BIN/ranks_lost" ] || return 0
  CARGO_MANIFEST_DIR=$HERE/gpu/policy KERNELZERO_ENGINE=$BIN/kernelzero-engine \
    "$BIN/ranks_lost" --ignored --nocapture 2>&1 | tee "$OUT/ranks-killed.txt"
  grep -q 'test result: ok' "$OUT/ranks-killed.txt" || bad=1
}

case ${1:-all} in
  all) check; own; peer ;;
  *) "$1" ;;
esac
exit $bad
