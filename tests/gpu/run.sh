#!/usr/bin/env bash
# Whole runs on a GPU, then everything that they did done again: models, judge and trainer on one device, in
# deterministic mode. `audit --effects` must find the same verdicts and the same weights, bit for bit.
# Builds nothing: takes kernelzero and kernelzero-engine from $BIN, Python from $KERNELZERO_PYTHON. Writes
# into $OUT. $DEVICE: where (cuda:0); $EFFECTS: so many effects of each kind are done again (40). Parts: all
# weights trained (`whole`), adapters trained beside a judge that times nothing (`adapters`); both without arguments.
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
cp "$work/laptop.toml" "$work/adapters.toml"
printf '\n[trainer.lora]\nr = 8\nalpha = 16.0\ndropout = 0.05\ntargets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]\n' \
    >> "$work/adapters.toml"
cp "$work/laptop.toml" "$work/whole.toml"
[ "${DEVICE:-cuda:0}" = cpu ] || sed -i 's/^timing = .*/timing = true/' "$work/whole.toml"
failed=0
both() { # NAME: a run of that config, and its effects once more
    kernelzero() { "$BIN/kernelzero" --home "$work/$1-home" "${@:2}"; }
    local start=$SECONDS
    kernelzero "$1" run --config "$work/$1.toml" --daemon-host "$work/host.toml" > "$OUT/$1.txt" 2>&1 || failed=1
    tail -3 "$OUT/$1.txt"
    echo "run, $1: $((SECONDS - start)) s"
    kernelzero "$1" status > "$OUT/$1-status.txt" 2>&1
    start=$SECONDS
    kernelzero "$1" --host "$work/host.toml" audit --effects "${EFFECTS:-40}" > "$OUT/$1-effects.txt" 2>&1 || failed=1
    cat "$OUT/$1-effects.txt"
    # There must have been kernels and gradient steps, and all that was done again must have come out alike.
    awk '/^(build|measurement|step) / { if ($5 + $7 > 0 || ($1 != "build" && $4 < 1)) bad = 1; kinds++ }
         END { exit bad || kinds != 3 }' "$OUT/$1-effects.txt" || { echo "effects, $1: not alike"; failed=1; }
    echo "audit, $1: $((SECONDS - start)) s"
}
for part in "${@:-all}"; do
    case $part in
        all) both whole; both adapters ;;
        *) both "$part" ;;
    esac
done
rm -rf "$work"
[ "$failed" = 0 ]
