"""Decoding speed of transformers' `generate` on the Qwen2 7B shape with random weights, bfloat16, with
the settings that its documentation gives for speed without compilation: SDPA attention, dynamic
cache. One JSON object a line, with the names that `kernelzero-engine bench-generate` uses."""

import argparse
import json
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", default="1,16,64,256")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--new", type=int, default=32)
    args = parser.parse_args()
    config = Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768,
        rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    for batch in map(int, args.batch.split(",")):
        ids = torch.randint(0, 150000, (batch, args.prompt), device="cuda")
        mask = torch.ones_like(ids)

        def run(new):
            torch.cuda.synchronize()
            began = time.perf_counter()
            with torch.inference_mode():
                model.generate(
                    input_ids=ids, attention_mask=mask, do_sample=True, temperature=0.6, top_k=20,
                    top_p=0.95, min_new_tokens=new, max_new_tokens=new, pad_token_id=0,
                )
            torch.cuda.synchronize()
            return time.perf_counter() - began

        run(2)
        first, whole = run(1), run(args.new)
        step = (whole - first) / (args.new - 1)
        print(json.dumps({
            "engine": "transformers", "batch": batch, "prompt": args.prompt, "new": args.new,
            "tokens_per_second": batch / step, "milliseconds_per_step": step * 1e3,
            "memory": torch.cuda.max_memory_allocated(),
        }), flush=True)


if __name__ == "__main__":
    main()
