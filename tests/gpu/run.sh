#!/usr/bin/env bash
# A whole run on a GPU, then everything that it did done again: models, judge and trainer on one device, in
# deterministic mode. `audit --effects` must find the same verdicts and the same weights, bit for bit.
# Builds nothing: takes kernelzero and kernelzero-engine from $BIN, Python from $KERNELZERO_PYTHON. Writes
# into $OUT. $DEVICE: where (cuda:0); $EFFECTS: so many effects are done again (40).
set -uo pipefail
BIN=${BIN:?the folder of kernelzero and kernelzero-engine}
OUT=${OUT:?a folder for what it prints}
: "${KERNELZERO_PYTHON:?a Python with torch, triton and nvcc}"
here=$(cd "$(dirname "$0")/../.." && pwd)
lib=$(dirname "$(dirname "$KERNELZERO_PYTHON")")/lib
export LD_LIBRARY_PATH=$(echo "$lib"/python3*/site-packages/torch/lib)
work=$(mktemp -d)
printf 'device = "%s"\ndeterministic = true\n' "${DEVICE:-cuda:0}" > "$work/host.toml"
cp -r "$here/configs/." "$work"
sed -i 's/^rounds = .*/rounds = 1/' "$work/laptop.toml"
[ "${DEVICE:-cuda:0}" = cpu ] || sed -i 's/^timing = .*/timing = true/' "$work/laptop.toml"
kernelzero() { "$BIN/kernelzero" --home "$work/home" "$@"; }
failed=0
start=$SECONDS
kernelzero run --config "$work/laptop.toml" --daemon-host "$work/host.toml" > "$OUT/run.txt" 2>&1 || failed=1
tail -3 "$OUT/run.txt"
echo "run: $((SECONDS - start)) s"
kernelzero status > "$OUT/status.txt" 2>&1
start=$SECONDS
kernelzero --host "$work/host.toml" audit --effects "${EFFECTS:-40}" > "$OUT/effects.txt" 2>&1 || failed=1
cat "$OUT/effects.txt"
# There must have been kernels and gradient steps, and all that was done again must have come out alike.
awk '/^(build|measurement|step) / { if ($5 + $7 > 0 || ($1 != "build" && $4 < 1)) bad = 1; kinds++ }
     END { exit bad || kinds != 3 }' "$OUT/effects.txt" || { echo "effects: not alike"; failed=1; }
echo "audit: $((SECONDS - start)) s"
rm -rf "$work"
[ "$failed" = 0 ]
