"""Full-parameter training steps of a random model of Qwen2's 7B shape in transformers, as a peer of
`kernelzero-engine bench-train`: bf16 weights, gradients and AdamW states (float32 ones do not fit
one GPU here), gradient checkpointing, fused AdamW, SDPA attention, one row per sequence.

Usage: transformers_train.py [--tokens 16384] [--sequence 4096] [--packs 1] [--steps 4] [--layers N]
Prints one line of JSON for each step; the first is not counted.
"""

import argparse
import json
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

PEAK = 989e12


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tokens", type=int, default=16384)
    p.add_argument("--sequence", type=int, default=4096)
    p.add_argument("--packs", type=int, default=1)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--layers", type=int, default=28)
    a = p.parse_args()
    config = Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=a.layers,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        rope_parameters=dict(rope_type="default", rope_theta=1e6),
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    ids = torch.randint(0, 152064, (a.tokens // a.sequence, a.sequence), device="cuda")
    layer = 3584 * (28 + 8) * 128 + 3584 * 3584 + 3 * 3584 * 18944
    positions = ids.numel() * a.packs
    pairs = positions * (a.sequence + 1) / 2
    matrices = layer * a.layers + 152064 * 3584
    flops = 6 * matrices * positions + 12 * 3584 * a.layers * pairs
    for step in range(a.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(a.packs):
            (model(ids, labels=ids, use_cache=False).loss / a.packs).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        line = dict(
            step=step,
            counted=step > 0,
            seconds=seconds,
            tokens_per_second=positions / seconds,
            mfu=flops / seconds / PEAK,
            memory=torch.cuda.max_memory_reserved(),
        )
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
