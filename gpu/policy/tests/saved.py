"""Loads a folder that the engine saved in transformers, strictly, and writes what it computes.

Usage: saved.py FOLDER
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    folder = Path(sys.argv[1])
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[what], f"{what}: {info[what]}"
    assert AutoTokenizer.from_pretrained(folder)("a b").input_ids
    ids = load_file(folder / "ids.safetensors")["ids"].long()
    with torch.no_grad():
        logits = model(ids).logits
    save_file({"logits": logits.contiguous()}, folder / "logits.safetensors")


if __name__ == "__main__":
    main()
