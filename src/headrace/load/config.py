"""config.json in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.words.config import ModelConfig, RopeConfig
from headrace.words.errors import ModelError, brief

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
OLD_ROPE_KINDS = {"su": "longrope"}
DTYPES = {"float32": "float32", "float": "float32", "float16": "float16", "half": "float16", "bfloat16": "bfloat16"}
MAX_COUNT = 2**40
MAX_NUMBER = 1e30
"""What arithmetic in float32 bears."""
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


class Reader:
    """Entries of an object of a file, checked; None counts as absent. ModelError names the entry."""

    def __init__(self, raw: Mapping[str, Any], file: str) -> None:
        self.raw = raw
        self.file = file

    def refuse(self, name: str, must: str) -> ModelError:
        return ModelError(self.file, f"{name} must be {must}, got {brief(self.raw.get(name))}")

    def count(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = default if self.raw.get(name) is None else self.raw[name]
        if value is None:
            raise ModelError(self.file, f"lacks {name}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_COUNT:
            raise self.refuse(name, "a positive whole number")
        return value

    def number(self, name: str, default: float) -> float:
        """Positive and not enormous."""
        value = default if self.raw.get(name) is None else self.raw[name]
        if not is_positive(value):
            raise self.refuse(name, "a positive number")
        return float(value)

    def name(self, name: str, default: str) -> str:
        value = self.raw.get(name) or default
        if not isinstance(value, str):
            raise self.refuse(name, "a name")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = default if self.raw.get(name) is None else self.raw[name]
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def object(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.refuse(name, "an object")
        return value


def is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_NUMBER


def model_config(raw: Mapping[str, Any], file: str = "config.json") -> ModelConfig:
    """Raises ModelError naming the entry that is missing, malformed or not built."""
    if raw.get("auto_map"):
        raise ModelError(file, "asks for code of its own (auto_map), which is never run; use a checkpoint without")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError(file, "names no architecture (architectures)")
    read = Reader(raw, file)
    num_heads = read.count("num_attention_heads")
    num_kv_heads = read.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise read.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    vocab_size = read.count("vocab_size")
    head_dim = read.count("head_dim", read.count("hidden_size") // num_heads or None)
    return ModelConfig(
        architecture=architectures[0],
        vocab_size=vocab_size,
        hidden_size=read.count("hidden_size"),
        intermediate_size=read.count("intermediate_size"),
        num_layers=read.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=read.count("max_position_embeddings", 2048),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=rope_config(read, head_dim),
        hidden_act=read.name("hidden_act", read.name("hidden_activation", "silu")),
        tie_word_embeddings=read.flag("tie_word_embeddings"),
        attention_bias=read.flag("attention_bias"),
        mlp_bias=read.flag("mlp_bias"),
        dtype=told_dtype(raw) or "float32",
        eos_token_ids=known_ids(raw.get("eos_token_id"), vocab_size),
        bos_token_id=next(iter(known_ids(raw.get("bos_token_id"), vocab_size)), None),
        raw=dict(raw),
    )


def told_dtype(raw: Mapping[str, Any]) -> str | None:
    """The weights', if the configuration tells one of those that are known."""
    return DTYPES.get(str(raw.get("dtype") or raw.get("torch_dtype")))


def id_list(value: Any) -> tuple[int, ...]:
    """Token ids, given as one or as a list."""
    many = value if isinstance(value, list) else [value]
    return tuple(i for i in many if isinstance(i, int) and not isinstance(i, bool))


def known_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    """Those that logits can have; −1 and the like mean that there is none."""
    return tuple(i for i in id_list(value) if 0 <= i < vocab_size)


def rope_config(read: Reader, head_dim: int) -> RopeConfig:
    """`rope_parameters`, or `rope_theta` with `rope_scaling` as it was before."""
    numbers = dict(read.object("rope_parameters") or read.object("rope_scaling"))
    if any(isinstance(value, Mapping) for value in numbers.values()):
        raise ModelError(read.file, "has rope parameters for each type of layer, which are not built")
    older = numbers.pop("type", None)
    kind = numbers.pop("rope_type", None) or older or "default"
    kind = OLD_ROPE_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in ROPE_KINDS:
        raise ModelError(read.file, f"rope type {brief(kind)} is unknown; known are {', '.join(ROPE_KINDS)}")
    nearer = Reader(numbers, read.file)
    theta = nearer.number("rope_theta", read.number("rope_theta", 10_000.0))
    share = nearer.number("partial_rotary_factor", read.number("partial_rotary_factor", 1.0))
    outer = ("rope_theta", "partial_rotary_factor")
    numbers = {name: value for name, value in numbers.items() if value is not None and name not in outer}
    if (original := read.raw.get("original_max_position_embeddings")) is not None:
        numbers.setdefault("original_max_position_embeddings", original)
    if theta <= 1:
        raise ModelError(read.file, f"rope_theta must be above 1, got {theta}")
    check_share(head_dim, share, read.file)
    check_rope_numbers(Reader(numbers, read.file))
    return RopeConfig(theta, kind, numbers, share)


def check_share(head_dim: int, share: float, file: str) -> None:
    """Dimensions are rotated in pairs."""
    if share > 1:
        raise ModelError(file, f"partial_rotary_factor must be at most 1, got {share}")
    num_rotated = int(head_dim * share)
    if num_rotated == 0 or num_rotated % 2:
        raise ModelError(file, f"rotates {num_rotated} dimensions of a head; only an even number can be rotated")


def check_rope_numbers(read: Reader) -> None:
    """Those that are there; which of them a kind needs is known where its table is made."""
    for name in (*ROPE_NUMBERS, *(name for name in MSCALES if read.raw.get(name))):
        read.number(name, 1.0)
    for name in ROPE_LISTS:
        values = read.raw.get(name, [])
        if not isinstance(values, list) or not all(map(is_positive, values)):
            raise read.refuse(name, "a list of positive numbers")
    high, low = (read.raw.get(f"{end}_freq_factor") for end in ("high", "low"))
    if high is not None and low is not None and high <= low:
        raise ModelError(read.file, f"high_freq_factor must be above low_freq_factor, got {high} and {low}")
