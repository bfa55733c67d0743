#!/usr/bin/env bash
# Measures the judge on a machine with a GPU. Builds nothing: takes the programs from $BIN, Python
# from $KERNELZERO_PYTHON, and the cases of $KERNELZERO_JUDGE_CASES (else the project's own). Writes
# into $OUT. Parts: peer (KernelBench, whose `src` $KERNELBENCH names, beside the judge; $PEER_CUDA of
# its CUDA candidates are timed), throughput (the Triton candidates of `peer` with three seeds each),
# tables, stability, soak ($SOAK candidates), bitwise. All without arguments.
set -uo pipefail
BIN=${BIN:?the folder of kernelzero}
OUT=${OUT:?a folder for the tables}
PY=${KERNELZERO_PYTHON:?a Python with torch, triton and nvcc}
here=$(cd "$(dirname "$0")/../.." && pwd)
own=$here/gpu/keck/tests/cases
sized=$here/benches/judge/sized
cases=${KERNELZERO_JUDGE_CASES:-$own}
tools=$here/benches/judge
work=$(mktemp -d)
export LD_LIBRARY_PATH=$(echo "$(dirname "$(dirname "$PY")")"/lib/python3*/site-packages/torch/lib)
device=cpu; [ -e /dev/nvidiactl ] && device=cuda:0
# NAME MORE: jobs wait for the device and its driver, so there are more of them than cores.
host() {
    printf 'judges = %d\ndevice = "%s"\n%s\n' $(($(nproc) * 3 / 2)) $device "${2:-}" > "$work/$1.toml"
    echo "$work/$1.toml"
}
plain=$(host plain)
now() { date +%s.%N; }
since() { "$PY" -c "print(round($(now) - $1, 1))"; }
batch() { # NAME PAIRS HOST MORE...: prints the seconds that it took
    local start; start=$(now)
    "$BIN/kernelzero" --host "$3" judge-batch "$2" --out "$OUT/$1.jsonl" --timing "${@:4}" \
        > "$OUT/$1.txt" 2>&1
    since "$start"
}
pairs() { "$PY" "$tools/pairs.py" "$@"; }
rate() { "$PY" -c "print('$1:', $2, 'candidates in', $3, 's,', round(60 * $2 / $3, 1), 'a minute')"; }

peer() {
    for backend in triton cuda; do
        pairs "$work/$backend.jsonl" $(printf '%s\n' "$sized" "$cases" "$own" | uniq) --backend $backend
        # Both find torch's files in memory; what they compile is compiled anew.
        "$PY" -c 'import torch, triton'
        seconds=$(batch "judged-$backend" "$work/$backend.jsonl" "$plain" --profile paper)
        rate "judge, $backend, cold, start included" "$(wc -l < "$work/$backend.jsonl")" "$seconds"
        if [ -n "${KERNELBENCH:-}" ]; then
            limit=20; [ $backend = cuda ] && limit=${PEER_CUDA:-5}
            "$PY" "$tools/kernelbench.py" "$KERNELBENCH" "$work/$backend.jsonl" "$limit" \
                > "$OUT/peer-$backend.jsonl"
            "$PY" "$tools/beside.py" "$OUT/peer-$backend.jsonl" "$OUT/judged-$backend.jsonl" "$seconds"
        fi
    done
    [ -z "${PEER_BUILDS:-}" ] || \
        "$PY" "$tools/peer_builds.py" "$KERNELBENCH" "$work/cuda.jsonl" "$(nproc)"
}

throughput() {
    pairs "$work/thrice.jsonl" $(printf '%s\n' "$sized" "$cases" "$own" | uniq) --backend triton --repeat 3
    rate "judge, triton, cold, every check, start included" "$(wc -l < "$work/thrice.jsonl")" \
        "$(batch thrice "$work/thrice.jsonl" "$plain")"
}

tables() {
    for profile in strict paper; do
        for set in own sized cases; do
            [ "$profile" = strict ] || [ $set = cases ] || continue
            name=$profile-$set
            "$BIN/kernelzero" --host "$plain" judge-cases "${!set}" --timing --profile $profile \
                > "$OUT/$name.txt" 2>&1
            grep '^BAD' "$OUT/$name.txt" | cut -c1-160
            echo "$name: $(tail -1 "$OUT/$name.txt" | cut -c1-120)"
        done
    done
}

stability() {
    pairs "$work/many.jsonl" "$sized/kernels" "$cases" "$own" --kinds honest --most 40 --repeat 10
    pairs "$work/long.jsonl" "$sized/kernels" "$cases" "$own" --kinds honest --most 40 --repeat 4
    rate "ten times" 400 "$(batch many "$work/many.jsonl" "$plain")"
    rate "long" 160 "$(batch long "$work/long.jsonl" "$(host long 'timing-turns = 60')")"
    "$PY" "$tools/stability.py" "$OUT/many.jsonl" "$OUT/long.jsonl"
}

soak() {
    local hostile=$tools/hostile.txt; [ $device = cpu ] && hostile=$tools/hostile-cpu.txt
    # The corpus has cases that the list names; without it there are the project's own.
    pairs "$work/soak.jsonl" "$cases" "$own" --backend triton --most 60 --count "${SOAK:-1000}" \
        --cycle "$hostile"
    "$PY" "$tools/soak.py" "$BIN/kernelzero" "$plain" "$work/soak.jsonl" "$OUT/soak.jsonl" \
        | tee "$OUT/soak.txt"
}

bitwise() {
    pairs "$work/builds.jsonl" "$cases" "$own" --backend cuda --kinds honest
    export KERNELZERO_LOG=keck=debug
    batch fast "$work/builds.jsonl" "$plain"
    batch full "$work/builds.jsonl" "$(host full 'full-headers = true')"
    unset KERNELZERO_LOG
    "$PY" "$tools/bitwise.py" "$OUT/fast.txt" "$OUT/full.txt"
}

[ $device = cpu ] || nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader | head -1
date -u +%F
for part in "${@:-all}"; do
    case $part in
        all) peer; throughput; tables; stability; soak; bitwise ;;
        *) $part ;;
    esac
done
rm -rf "$work"
