"""The rotary embedding's numbers in a configuration, in the words of every version."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.layers.entries import Entries, is_positive
from headrace.words.config import RopeConfig
from headrace.words.errors import ModelError, brief

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
OLD_ROPE_KINDS = {"su": "longrope"}
ROPE_NUMBERS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)
MSCALES = ("mscale", "mscale_all_dim")
"""Of yarn; 0 counts as absent."""
ROPE_LISTS = ("short_factor", "long_factor", "divisors")
OUTER = ("rope_theta", "partial_rotary_factor")


def rope_config(entries: Entries, head_dim: int) -> RopeConfig:
    """`rope_parameters`, or `rope_theta` with `rope_scaling` as it was before."""
    numbers = dict(entries.object("rope_parameters") or entries.object("rope_scaling"))
    if any(isinstance(value, Mapping) for value in numbers.values()):
        raise ModelError(entries.file, "has rope parameters for each type of layer, which this family has not")
    older = numbers.pop("type", None)
    kind = numbers.pop("rope_type", None) or older or "default"
    kind = OLD_ROPE_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in ROPE_KINDS:
        raise ModelError(entries.file, f"rope type {brief(kind)} is unknown; known are {', '.join(ROPE_KINDS)}")
    nearer = Entries(numbers, entries.file)
    theta = nearer.number("rope_theta", entries.number("rope_theta", 10_000.0))
    share = nearer.number("partial_rotary_factor", entries.number("partial_rotary_factor", 1.0))
    numbers = {name: value for name, value in numbers.items() if value is not None and name not in OUTER}
    if (original := entries.value("original_max_position_embeddings")) is not None:
        numbers.setdefault("original_max_position_embeddings", original)
    if theta <= 1:
        raise ModelError(entries.file, f"rope_theta must be above 1, got {theta}")
    check_share(head_dim, share, entries.file)
    check_rope_numbers(Entries(numbers, entries.file))
    return RopeConfig(theta, kind, numbers, share)


def check_share(head_dim: int, share: float, file: str) -> None:
    """Dimensions are rotated in pairs."""
    if share > 1:
        raise ModelError(file, f"partial_rotary_factor must be at most 1, got {share}")
    num_rotated = int(head_dim * share)
    if num_rotated == 0 or num_rotated % 2:
        raise ModelError(file, f"rotates {num_rotated} dimensions of a head; only an even number can be rotated")


def check_rope_numbers(entries: Entries) -> None:
    """Those that are there; which of them a kind needs is known where its table is made."""
    for name in (*ROPE_NUMBERS, *(name for name in MSCALES if entries.raw.get(name))):
        entries.number(name, 1.0)
    for name in ROPE_LISTS:
        values = entries.raw.get(name, [])
        if not isinstance(values, list) or not all(map(is_positive, values)):
            raise entries.refuse(name, "a list of positive numbers")
    high, low = (entries.raw.get(f"{end}_freq_factor") for end in ("high", "low"))
    if high is not None and low is not None and high <= low:
        raise ModelError(entries.file, f"high_freq_factor must be above low_freq_factor, got {high} and {low}")
