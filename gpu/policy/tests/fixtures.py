"""Makes tiny Hugging Face models and what transformers and PyTorch say about them.

Usage: fixtures.py (llama|qwen2|qwen3|grpo) FOLDER
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = dict(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=96,
    attn_implementation="eager",
    eos_token_id=3,
)


# How sums are divided among threads changes their last bits, on busy machines by 2e-5.
torch.set_num_threads(1)


def llama(seed, **more):
    torch.manual_seed(seed)
    return randomise(LlamaForCausalLM(LlamaConfig(**SIZES, **more)))


def qwen2(seed, **more):
    torch.manual_seed(seed)
    return randomise(Qwen2ForCausalLM(Qwen2Config(**SIZES, **more)))


def qwen3(seed, **more):
    torch.manual_seed(seed)
    return randomise(Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, **more)))


def randomise(model):
    """Biases and norms start at 0 and 1, where mistakes hide; move them."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.1))
    return model.float().eval()


def parity(model, folder, **save):
    ids = torch.randint(0, SIZES["vocab_size"], (3, 40))
    logits = model(ids).logits.float()
    # The sum of the log-probabilities of every token but the first.
    scores = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])
    scores.sum().backward()
    gradients = {name: p.grad.contiguous() for name, p in model.named_parameters()}
    save_file(gradients, folder / "gradients.safetensors")
    logits = logits.detach()
    model.save_pretrained(folder, **save)
    save_file({"ids": ids.float(), "logits": logits.contiguous()}, folder / "expected.safetensors")


def grpo(folder):
    """One step by the book: whole logits, no micro-batches, PyTorch's own AdamW."""
    model, reference = llama(1, tie_word_embeddings=True), llama(2, tie_word_embeddings=True)
    model.save_pretrained(folder / "model")
    reference.save_pretrained(folder / "reference")
    temperature, clip, kl_weight, lr, decay, limit = 0.7, 0.2, 0.05, 1e-3, 0.1, 1.0
    samples, losses, stats = [], [], []
    for length, advantage in [(5, 1.5), (9, -0.75), (1, 0.0), (14, 0.5)]:
        prompt = torch.randint(0, 131, (4 + length % 3,)).tolist()
        answer = torch.randint(0, 131, (length,)).tolist()

        def score(m):
            logits = m(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            return torch.log_softmax(logits.float() / temperature, -1)

        all_scores = score(model)
        chosen = all_scores.gather(1, torch.tensor(answer)[:, None])[:, 0]
        with torch.no_grad():
            ref = score(reference).gather(1, torch.tensor(answer)[:, None])[:, 0]
        sampler = chosen.detach() + 0.3 * torch.randn(length)
        ratio = (chosen - sampler).exp()
        free, held = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
        d = ref - chosen
        k3 = d.exp() - d - 1
        losses.append((-torch.minimum(free, held) + kl_weight * k3).mean())
        drift = chosen.detach() - sampler
        entropy = -(all_scores.exp() * all_scores).sum(-1)
        stats.append((k3.mean(), (free > held).float(), drift.exp() - drift - 1, entropy))
        samples.append(
            dict(prompt_tokens=prompt, tokens=answer, logprobs=sampler.tolist(), advantage=advantage)
        )
    loss = torch.stack(losses).mean()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=decay), dict(params=vectors, weight_decay=0.0)], lr=lr
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    model.save_pretrained(folder / "after")
    flat = lambda i: torch.cat([s[i].reshape(-1) for s in stats]).mean().item()
    expected = dict(
        loss=loss.item(),
        kl=torch.stack([s[0] for s in stats]).mean().item(),
        clip_fraction=flat(1),
        mismatch_kl=flat(2),
        entropy=flat(3),
        grad_norm=norm.item(),
    )
    options = dict(
        temperature=temperature, clip=clip, kl=kl_weight, lr=lr, weight_decay=decay, grad_clip=limit
    )
    text = json.dumps(dict(samples=samples, expected=expected, options=options))
    (folder / "grpo.json").write_text(text)


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if what == "llama":
        scaling = dict(
            rope_type="llama3",
            rope_theta=500.0,
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        )
        model = llama(1, rope_parameters=scaling, tie_word_embeddings=False)
        parity(model, folder, max_shard_size="40KB")
    elif what == "qwen2":
        parity(qwen2(2, tie_word_embeddings=True), folder)
    elif what == "qwen3":
        parity(qwen3(3, tie_word_embeddings=True), folder)
    elif what == "grpo":
        grpo(folder)
    else:
        sys.exit(f"unknown fixture {what}")


if __name__ == "__main__":
    main()
