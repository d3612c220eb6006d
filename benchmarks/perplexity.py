"""Perplexity of a model in several precisions over a text: by default this repository's own pages and sources.

Usage: python -m benchmarks.perplexity MODEL [--tokens 20480] [--text FILE ...] OPTIONS [OPTIONS ...]

OPTIONS are engine options as name=value, joined by commas: dtype=bfloat16 dtype=bfloat16,quantization=int8. The first
is what the others are compared with. The text is cut into windows of 1,024 tokens, whose first is not scored.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams

WINDOW = 1_024
ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "src/headrace/engine/*.py", "src/headrace/schedule/*.py")


def own_text() -> str:
    """The pages first; always in the same order."""
    files = [file for pattern in PAGES for file in sorted(ROOT.glob(pattern)) if file.name != "traceability.md"]
    return "\n\n".join(file.read_text(encoding="utf-8") for file in files)


def options_of(text: str) -> dict[str, Any]:
    return dict(option.split("=", 1) for option in text.split(","))


def perplexity(model: str, text: str, num_tokens: int, options: dict[str, Any]) -> tuple[float, int]:
    """→ perplexity and the number of tokens that it is over"""
    with LLM(model, max_model_len=WINDOW + 8, **options) as llm:
        ids = llm.get_tokenizer().encode(text)[:num_tokens]
        prompts = [{"prompt_token_ids": ids[i : i + WINDOW]} for i in range(0, len(ids) - 1, WINDOW)]
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        outputs = llm.generate(prompts, params, use_tqdm=True)
    scores = [
        entry[token].logprob
        for output in outputs
        for token, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    ]
    return math.exp(-math.fsum(scores) / len(scores)), len(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("options", nargs="+")
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--text", type=Path, nargs="*")
    asked = parser.parse_args()
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in asked.text) if asked.text else own_text()
    first = None
    print("| options | tokens | perplexity | against the first |\n|---|---|---|---|")
    for options in asked.options:
        value, count = perplexity(asked.model, text, asked.tokens, options_of(options))
        first = first or value
        print(f"| {options} | {count:,} | {value:.3f} | {100 * (value / first - 1):+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
