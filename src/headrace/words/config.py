"""Configuration as three frozen values: what was asked, what the checkpoint says, what was decided."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.words.errors import ConfigError, brief, nearest

PrefillPolicy = Literal["mixed", "first", "attempt"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
PreemptionPolicy = Literal["recompute", "stop"]
VictimPolicy = Literal["latest", "most_output"]
KVCacheDtype = Literal["auto", "bfloat16", "float32", "int8"]

GIB = 1 << 30
DEFAULT_MODEL = "smollm2-135m"
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2_048
MAX_NUM_THREADS = 1_024
MOST_NUM_SEQS = 65_536
MEMORY_SHARE = 0.92
CPU_CACHE_CAP_BYTES = 4 * GIB
COMPLETIONS_MAX_TOKENS = 16
"""Only for /v1/completions without max_tokens, as at OpenAI; nowhere else is 16 a default."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. `kind`: default, linear, dynamic, yarn, llama3, longrope; `scaling` holds its numbers."""

    theta: float = 10_000.0
    kind: str = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    partial_factor: float = 1.0
    """Share of head_dim that is rotated."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the checkpoint says. `raw` is config.json, or GGUF metadata in its words, for what one family needs."""

    architecture: str
    vocab_size: int
    """Rows of the embedding, the width of the logits."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    rope: RopeConfig
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    """As stored: float32, float16 or bfloat16."""
    quantization: str | None = None
    """How its matrices are quantized, in the checkpoint's word."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    file: str = "config.json"
    """The name of the file that says all this, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingOptions:
    """What is asked of the scheduler and passed on to it as it is.

    `scheduling_policy`: fcfs, priority (lower values first), fair (per user). `prefill_policy`: mixed (chunks beside
    decodes), first (prefill whenever any fits), attempt (only at attempt points, bounded by steps and seconds).
    """

    enable_prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    prefill_policy: PrefillPolicy = "mixed"
    attempt_max_steps: int = 8
    attempt_max_wait_s: float = 0.05
    attempt_target_tokens: int = 512
    preemption_policy: PreemptionPolicy = "recompute"
    victim_policy: VictimPolicy = "latest"
    max_preemptions: int | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig(SchedulingOptions):
    """What the user asked, with vLLM's names; None means "decide for me". Sizes are in tokens, bytes or seconds as
    their names say."""

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    backend: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float = MEMORY_SHARE
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    seed: int = 0
    generation_config: str = "auto"
    chat_template: str | None = None
    async_scheduling: bool = False
    """Commit a step behind the next one's forward, which hides the host's work where a device computes by itself. On a
    CPU forward returns when it is done: nothing is hidden there."""
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    max_num_queued_requests: int | None = None
    max_num_queued_tokens: int | None = None
    num_threads: int | None = None
    role: Literal["normal", "prefill", "decode"] = "normal"

    def __post_init__(self) -> None:
        """Raises ConfigError for a value of the wrong kind; ranges are checked when the model is known."""
        for each in dataclasses.fields(self):
            _check_kind(each.name, str(each.type), getattr(self, each.name))


@dataclass(frozen=True, slots=True)
class SchedulerConfig(SchedulingOptions):
    """What the scheduler must know, nothing of it None but switches that are off."""

    max_model_len: int
    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
    max_overtakes: int = 256
    num_drafts: int = 0
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def most_step_tokens(self) -> int:
        """As many as the budget allows, but no more than all rows at full length have."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * (self.max_model_len + self.num_drafts))


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the machine offers: cores this process may use, and memory in bytes (the cgroup's limit counts)."""

    num_cores: int
    memory_limit_bytes: int
    memory_available_bytes: int
    has_kernels: bool = False
    """Whether the native kernels were built."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was decided; logged once, nothing None but limits that are off."""

    model: str
    dtype: str
    quantization: str | None
    """What matrices are rounded to at load, None if they stay as they are stored."""
    backend: str
    block_size: int
    num_threads: int
    seed: int
    memory_share: float
    kv_cache_dtype: str
    """Of keys and values in the cache: `dtype`, or int8."""
    kv_cache_memory_bytes: int | None
    num_blocks: int | None
    max_model_len_is_explicit: bool
    scheduler: SchedulerConfig
    queue_timeout_s: float | None
    request_timeout_s: float | None
    max_num_queued_requests: int | None
    max_num_queued_tokens: int | None
    async_scheduling: bool


ACCEPTED = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "trust_remote_code": False,
    "enforce_eager": None,
    "load_format": "auto",
    "swap_space": None,
    "cpu_offload_gb": 0,
    "disable_log_stats": None,
    "enable_chunked_prefill": True,
    "distributed_executor_backend": None,
    "tokenizer_mode": "auto",
    "skip_tokenizer_init": False,
    "hf_token": None,
    "download_dir": None,
    "max_logprobs": 20,
    "device": "cpu",
}
"""vLLM's keywords and the value that asks for nothing (None: any value)."""


def engine_config(**options: Any) -> EngineConfig:
    """EngineConfig from keywords. An unknown one, or one that asks for what is not built, is a ConfigError."""
    known = {f.name for f in dataclasses.fields(EngineConfig)}
    for name, value in options.items():
        if name in known:
            continue
        if name not in ACCEPTED:
            raise ConfigError(name, f"unknown engine option{nearest(name, known | ACCEPTED.keys())}")
        neutral = ACCEPTED[name]
        if neutral is not None and value is not None and value != neutral:
            raise ConfigError(name, f"{value!r} is not supported; leave it out or pass {neutral!r}")
    return EngineConfig(**{name: value for name, value in options.items() if name in known})


def resolve(asked: EngineConfig, model: ModelConfig, hardware: Hardware) -> Resolved:
    """Decides everything that was left open. Pure: same arguments, same answer. Raises ConfigError."""
    _check(asked, model)
    dtype = _dtype(asked, model.dtype)
    max_model_len = asked.max_model_len or model.max_position_embeddings
    max_num_seqs = asked.max_num_seqs or MAX_NUM_SEQS
    budget = asked.max_num_batched_tokens or max(MAX_NUM_BATCHED_TOKENS, max_num_seqs)
    if budget < max_num_seqs:
        if asked.max_num_seqs:
            raise ConfigError("max_num_batched_tokens", f"must be at least max_num_seqs ({max_num_seqs}), got {budget}")
        max_num_seqs = budget
    chosen = {f.name: getattr(asked, f.name) for f in dataclasses.fields(SchedulingOptions)}
    chosen |= {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget}
    return Resolved(
        model=asked.model,
        dtype=dtype,
        quantization=_quantization(asked.quantization, model),
        backend=_backend(asked.backend, hardware),
        block_size=asked.block_size or BLOCK_SIZE,
        num_threads=asked.num_threads or hardware.num_cores,
        seed=asked.seed,
        memory_share=asked.gpu_memory_utilization,
        kv_cache_dtype=_kv_cache_dtype(asked.kv_cache_dtype, dtype),
        kv_cache_memory_bytes=asked.kv_cache_memory_bytes,
        num_blocks=asked.num_gpu_blocks_override,
        max_model_len_is_explicit=asked.max_model_len is not None,
        scheduler=SchedulerConfig(eos_token_ids=frozenset(model.eos_token_ids), **chosen),
        queue_timeout_s=asked.queue_timeout_s,
        request_timeout_s=asked.request_timeout_s,
        max_num_queued_requests=asked.max_num_queued_requests,
        max_num_queued_tokens=asked.max_num_queued_tokens,
        async_scheduling=asked.async_scheduling,
    )


QUANTIZATIONS = {"int8": 8, "int4": 4}
"""Bits of what matrices may be rounded to at load."""
_CHOICES = {
    "dtype": (None, "auto", "float32", "bfloat16", "float16", "half", "float"),
    "backend": (None, "auto", "cpu", "reference"),
    "kv_cache_dtype": ("auto", "bfloat16", "float32", "int8"),
    "scheduling_policy": ("fcfs", "priority", "fair"),
    "prefill_policy": ("mixed", "first", "attempt"),
    "preemption_policy": ("recompute", "stop"),
    "victim_policy": ("latest", "most_output"),
    "role": ("normal",),
}
_POSITIVE = (
    "max_model_len max_num_seqs max_num_batched_tokens block_size kv_cache_memory_bytes num_gpu_blocks_override "
    "queue_timeout_s request_timeout_s max_num_queued_requests max_num_queued_tokens num_threads "
    "attempt_max_steps attempt_max_wait_s attempt_target_tokens"
).split()


_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "bool": ("True or False", (bool,)),
    "int": ("a whole number", (numbers.Integral,)),
    "float": ("a number", (numbers.Real,)),
    "str": ("a text", (str, os.PathLike)),
}


def _check_kind(name: str, annotation: str, value: Any) -> None:
    """`annotation` as it is written: `int | None`, `bool`, …; the choices of a Literal are checked elsewhere."""
    kind, _, optional = annotation.partition(" | ")
    if kind not in _KINDS or (optional and value is None):
        return
    text, types = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise ConfigError(name, f"must be {text}, got {brief(value)}")


def _check(asked: EngineConfig, model: ModelConfig) -> None:
    for name, choices in _CHOICES.items():
        if (value := getattr(asked, name)) not in choices:
            raise ConfigError(name, f"must be one of {', '.join(str(c) for c in choices if c)}, got {value!r}")
    for name in _POSITIVE:
        value = getattr(asked, name)
        if value is None:
            continue
        whole = not name.endswith("_s")
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0 or value == float("inf"):
            raise ConfigError(name, f"must be a positive {'whole number' if whole else 'number'}, got {value!r}")
    if asked.max_preemptions is not None and asked.max_preemptions < 0:
        raise ConfigError("max_preemptions", f"must be at least 0, got {asked.max_preemptions}; None means no limit")
    for name, most in (("num_threads", MAX_NUM_THREADS), ("max_num_seqs", MOST_NUM_SEQS)):
        if (value := getattr(asked, name)) is not None and value > most:
            raise ConfigError(name, f"must be at most {most}, got {value}")
    share = asked.gpu_memory_utilization
    if not 0 < share <= 1:
        raise ConfigError("gpu_memory_utilization", f"must be above 0 and at most 1, got {share!r}")
    limit = model.max_position_embeddings
    if asked.max_model_len and asked.max_model_len > limit and model.rope.kind != "dynamic":
        raise ConfigError("max_model_len", f"the model was made for {limit} positions, got {asked.max_model_len}")


def _backend(asked: str | None, hardware: Hardware) -> str:
    if asked in (None, "auto"):
        return "cpu" if hardware.has_kernels else "reference"
    if asked == "cpu" and not hardware.has_kernels:
        raise ConfigError(
            "backend",
            "the native kernels were not built; install a C++ compiler and then headrace again, or pass 'reference'",
        )
    return str(asked)


def _quantization(asked: str | None, model: ModelConfig) -> str | None:
    """The checkpoint's own word for how it is quantized asks for nothing."""
    if asked in (None, model.quantization):
        return None
    if asked not in QUANTIZATIONS:
        raise ConfigError("quantization", f"must be one of {', '.join(QUANTIZATIONS)}, got {brief(asked)}")
    if model.quantization is not None:
        raise ConfigError(
            "quantization", f"the checkpoint is quantized already ({model.quantization}), got {asked!r}; leave it out"
        )
    return asked


def _dtype(asked: EngineConfig, stored: str) -> str:
    """fp16 runs as fp32 on a CPU. Integers are kept beside bfloat16 alone."""
    if asked.dtype in (None, "auto"):
        name = "bfloat16" if asked.quantization in QUANTIZATIONS else stored
    else:
        name = str(asked.dtype)
    return "bfloat16" if name == "bfloat16" else "float32"


def _kv_cache_dtype(asked: str, dtype: str) -> str:
    if asked in ("auto", dtype):
        return dtype
    if asked == "int8":
        return asked
    raise ConfigError(
        "kv_cache_dtype",
        f"a model that runs in {dtype} keeps keys and values in {dtype} or int8, got {asked!r}; pass 'auto', or "
        f"{asked!r} as dtype too",
    )
