"""Work that nobody tuned for, on Headrace or vLLM: odd batches, prompts of random lengths, other models' shapes.

Usage: python -m benchmarks.untuned ENGINE MODEL [--make SHAPE] [--only WORK ...]

ENGINE is headrace or vllm; run with the Python of its environment (vLLM's needs this file alone: python benchmarks/
untuned.py). `--make` first writes random weights of that shape into the folder MODEL, which takes transformers.
The last line is JSON as benchmarks.compare reads it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], list[int]], None]
BATCHES = (3, 5, 13, 48)
ONE_ROW = "one row, 64 tokens"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-1b": (
        "Llama",
        {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
    ),
    "qwen3-0.6b": (
        "Qwen3",
        {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    ),
    "moe": (
        "Qwen3Moe",
        {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"num_key_value_heads": 4, "head_dim": 64, "num_experts": 32, "num_experts_per_tok": 4}
        | {"moe_intermediate_size": 384, "decoder_sparse_step": 1, "norm_topk_prob": True, "tie_word_embeddings": True},
    ),
}


def make(shape: str, folder: Path, tokenizer_folder: Path) -> None:
    """Random weights in bfloat16, with the tokenizer of another folder."""
    import torch
    import transformers

    family, entries = SHAPES[shape]
    vocab = json.loads((tokenizer_folder / "config.json").read_text())["vocab_size"]
    config = getattr(transformers, f"{family}Config")(**entries, vocab_size=vocab, max_position_embeddings=4096)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    for file in tokenizer_folder.glob("*token*"):
        shutil.copy(file, folder)


def works() -> dict[str, tuple[list[list[int]], list[int]]]:
    """Prompts and lengths of answers by name."""
    rng = random.Random(3)
    made = {ONE_ROW: ([[rng.randrange(100, 40_000) for _ in range(77)]], [64])}
    for size in BATCHES:
        prompts = [[rng.randrange(100, 40_000) for _ in range(rng.randint(1, 1_500))] for _ in range(size)]
        made[f"{size} rows, random lengths"] = (prompts, [rng.randint(16, 96) for _ in prompts])
    return made


def loaded(engine: str, model: str) -> Generate:
    """Both engines have the same offline interface."""
    package = importlib.import_module(engine)
    llm = package.LLM(model, dtype="bfloat16", max_model_len=4096, max_num_seqs=64, enable_prefix_caching=False)

    def generate(prompts: list[list[int]], lengths: list[int]) -> None:
        params = [package.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        assert [len(output.outputs[0].token_ids) for output in outputs] == lengths

    return generate


def measure(engine: str, generate: Generate, only: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"engine": engine}
    generate([[200 + i for i in range(40)]] * 2, [4, 4])
    for name, (prompts, lengths) in works().items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        generate(prompts, lengths)
        seconds = time.perf_counter() - start
        found[name] = {"s": round(seconds, 3), "tok/s": round(sum(lengths) / seconds, 1)}
        print(engine, name, found[name], file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["headrace", "vllm"])
    parser.add_argument("model")
    parser.add_argument("--make", choices=list(SHAPES))
    parser.add_argument("--tokenizer", type=Path, help="folder in Hugging Face's layout whose tokenizer --make copies")
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    if asked.make:
        make(asked.make, Path(asked.model), asked.tokenizer)
    print(json.dumps(measure(asked.engine, loaded(asked.engine, asked.model), asked.only)))


if __name__ == "__main__":
    main()
