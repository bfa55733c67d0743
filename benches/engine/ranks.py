"""Lines of `bench-train` on one and on two ranks, compared: `curve ONE TWO`, or `speed BOTH`.

curve: the loss of every step on two GPUs is within 0.2 % of that on one (bfloat16 weights: sums in another
order round a weight here and there to its neighbour), and it falls.
speed: at equal tokens for each GPU, two do at least 1.8 times as many tokens a second as one.
"""

import json
import sys

CURVE, SPEED = 2e-3, 1.8


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def curve(one, two):
    one, two = ([line["loss"] for line in lines(path)] for path in (one, two))
    if len(one) != len(two) or len(one) < 20:
        sys.exit(f"{len(one)} steps on one GPU and {len(two)} on two")
    off = [abs(a - b) / abs(a) for a, b in zip(one, two)]
    print(f"loss {one[0]:.4f} to {one[-1]:.4f} on one GPU, to {two[-1]:.4f} on two; off by {max(off):.1e} at most")
    if max(off) > CURVE or not one[-1] < one[0]:
        sys.exit(f"more than {CURVE:.0e}, or it does not fall")


def speed(path):
    best = {}
    for line in lines(path):
        if line["counted"]:
            packs = line["positions"] // line["ranks"]
            metrics = line["metrics"]
            known = best.setdefault(packs, {}).get(line["ranks"])
            if known is None or metrics["tokens_per_second"] > known["tokens_per_second"]:
                best[packs][line["ranks"]] = metrics
    bad = not best
    for tokens, found in sorted(best.items()):
        if 1 not in found or 2 not in found:
            sys.exit(f"{tokens} tokens for each GPU: figures of {sorted(found)} ranks only")
        one, two = found[1], found[2]
        times = two["tokens_per_second"] / one["tokens_per_second"]
        parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in two["parts"].items())
        mfu = " and ".join(f"{100 * (m.get('mfu') or 0):.1f} %" for m in (one, two))
        print(f"{tokens} tokens for each GPU: {one['tokens_per_second']:.0f} tok/s, {two['tokens_per_second']:.0f} on two: "
              f"{times:.2f} times; MFU {mfu}; seconds {parts}")
        bad |= times < SPEED
    if bad:
        sys.exit(f"less than {SPEED} times")


{"curve": curve, "speed": speed}[sys.argv[1]](*sys.argv[2:])
