"""Rotary position embedding (arXiv 2104.09864): a table of cosines and sines for every position, made once at load."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Floats
from headrace.words.config import RopeConfig
from headrace.words.errors import ModelError

Frequencies = NDArray[np.float32]


class RopeNumberError(ValueError):
    """Numbers that make no table; said as what follows a file's name."""


def rotary_table(
    rope: RopeConfig, head_dim: int, max_position_embeddings: int, max_model_len: int, file: str = "config.json"
) -> Floats:
    """[max_model_len, R]: R / 2 cosines and as many sines, R the even number of dimensions that are rotated.

    Frequencies and angles are fp32, as in the models' training code. Scaling of the amplitude (yarn, longrope) is in
    the table. ModelError names `file`.
    """
    if rope.kind not in KINDS:
        raise ModelError(file, f"rope type {rope.kind!r} is unknown; known are {', '.join(KINDS)}")
    num_rotated = int(head_dim * rope.partial_factor)
    try:
        frequencies, amplitude = KINDS[rope.kind](rope, num_rotated, max_position_embeddings, max_model_len)
    except KeyError as missing:
        raise ModelError(file, f"rope type {rope.kind!r} lacks its number {missing}") from None
    except RopeNumberError as wrong:
        raise ModelError(file, f"rope type {rope.kind!r} {wrong}") from None
    angles = np.arange(max_model_len, dtype=np.float32)[:, None] * frequencies.astype(np.float32)[None]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32) * np.float32(amplitude)


def plain_frequencies(theta: float, num_rotated: int) -> Frequencies:
    """theta^(−2i / R)"""
    exponents = np.arange(0, num_rotated, 2, dtype=np.int64).astype(np.float32) / np.float32(num_rotated)
    return (np.float32(1.0) / np.power(np.float32(theta), exponents)).astype(np.float32)


def default(rope: RopeConfig, num_rotated: int, trained: int, max_model_len: int) -> tuple[Frequencies, float]:
    return plain_frequencies(rope.theta, num_rotated), 1.0


def linear(rope: RopeConfig, num_rotated: int, trained: int, max_model_len: int) -> tuple[Frequencies, float]:
    """Positions divided by a factor (arXiv 2306.15595)."""
    return plain_frequencies(rope.theta, num_rotated) / np.float32(rope.scaling["factor"]), 1.0


def dynamic(rope: RopeConfig, num_rotated: int, trained: int, max_model_len: int) -> tuple[Frequencies, float]:
    """NTK-aware: the base grows with the length. Fixed here from max_model_len, so that a token's key never changes."""
    factor = rope.scaling["factor"]
    trained = rope.scaling.get("original_max_position_embeddings") or trained
    length = max(max_model_len, trained)
    growth = (factor * length / trained) - (factor - 1)
    theta = rope.theta * growth ** (num_rotated / (num_rotated - 2))
    return plain_frequencies(theta, num_rotated), 1.0


def llama3(rope: RopeConfig, num_rotated: int, trained: int, max_model_len: int) -> tuple[Frequencies, float]:
    """Long waves are slowed by a factor, short ones kept, those between blended (Llama 3.1).

    A GGUF file tells the outcome, one divisor per dimension, instead of the numbers.
    """
    numbers = rope.scaling
    if "divisors" in numbers:
        return (plain_frequencies(rope.theta, num_rotated) / np.array(numbers["divisors"])).astype(np.float32), 1.0
    factor, low, high = numbers["factor"], numbers["low_freq_factor"], numbers["high_freq_factor"]
    original = numbers["original_max_position_embeddings"]
    plain = plain_frequencies(rope.theta, num_rotated)
    waves = 2 * math.pi / plain
    blend = (original / waves - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    slowed = np.where(waves > original / low, plain / factor, plain)
    is_between = (waves <= original / low) & (waves >= original / high)
    return np.where(is_between, blended, slowed).astype(np.float32), 1.0


def yarn(rope: RopeConfig, num_rotated: int, trained: int, max_model_len: int) -> tuple[Frequencies, float]:
    """Frequencies blended by how often they turn within the trained length, amplitudes raised (arXiv 2309.00071)."""
    numbers = rope.scaling
    original = numbers.get("original_max_position_embeddings") or trained
    factor = numbers["factor"]
    plain = plain_frequencies(rope.theta, num_rotated)
    bounds = [numbers.get("beta_fast") or 32, numbers.get("beta_slow") or 1]
    first, last = (_turns_dimension(turns, num_rotated, rope.theta, original) for turns in bounds)
    if numbers.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, num_rotated - 1)
    last += 0.001 if last == first else 0
    ramp = (np.arange(num_rotated // 2, dtype=np.float32) - first) / (last - first)
    kept = 1 - np.clip(ramp, 0, 1)
    return (plain / factor * (1 - kept) + plain * kept).astype(np.float32), yarn_amplitude(numbers, factor)


def _turns_dimension(turns: float, num_rotated: int, theta: float, original: int) -> float:
    """The dimension whose wave turns so often within the trained length."""
    return num_rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_amplitude(numbers: Any, factor: float) -> float:
    """`attention_factor` if given; else 0.1 · ln(factor) + 1, or the ratio of the two mscales."""
    if (given := numbers.get("attention_factor")) is not None:
        return float(given)

    def raised(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, mscale_all = numbers.get("mscale"), numbers.get("mscale_all_dim")
    return raised(mscale) / raised(mscale_all) if mscale and mscale_all else raised(1.0)


def longrope(rope: RopeConfig, num_rotated: int, trained: int, max_model_len: int) -> tuple[Frequencies, float]:
    """One divisor per dimension, one set of them for short texts and one for long (arXiv 2402.13753). Which is decided
    here by max_model_len, so that a token's key never changes."""
    numbers = rope.scaling
    original = numbers.get("original_max_position_embeddings") or trained
    name = "long_factor" if max_model_len > original else "short_factor"
    divisors = np.array(numbers[name], np.float32)
    if divisors.size != num_rotated // 2:
        raise RopeNumberError(f"has {divisors.size} values in {name} for {num_rotated} rotated dimensions")
    return plain_frequencies(rope.theta, num_rotated) / divisors, longrope_amplitude(numbers, trained, original)


def longrope_amplitude(numbers: Any, trained: int, original: float) -> float:
    """`attention_factor` if given, else √(1 + ln(factor) / ln(original))."""
    if (given := numbers.get("attention_factor")) is not None:
        return float(given)
    factor = numbers.get("factor") or trained / original
    if factor <= 1:
        return 1.0
    if original <= 1:
        raise RopeNumberError(f"needs an original_max_position_embeddings above 1, got {original}")
    return math.sqrt(1 + math.log(factor) / math.log(original))


Kind = Callable[[RopeConfig, int, int, int], tuple[Frequencies, float]]
KINDS: dict[str, Kind] = {
    "default": default,
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
}
