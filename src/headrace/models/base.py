"""What the worker knows of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from headrace.comm import Comm
from headrace.layers.entries import Entries
from headrace.layers.weights import WeightSource
from headrace.ops.base import KVCache, Ops, StepInputs, Tensor
from headrace.words.cache_spec import CacheSpec
from headrace.words.config import ModelConfig, RopeConfig


class Model(Protocol):
    """A decoder. Its forward is a function of its arguments, and straight prose over ops: no branch asks for data."""

    names: ClassVar[Mapping[str, str]]
    """The family's own names for what Llama's config.json says, by Llama's names."""
    code: ClassVar[tuple[str, ...]]
    """Classes that published checkpoints bring as code and name in auto_map, though they do what this one does: such
    checkpoints are read, their code is never run."""
    weight_bytes: int
    """What the weights take in the dtype of the ops."""

    @classmethod
    def entries(cls, raw: Mapping[str, Any], file: str) -> Entries:
        """config.json, asked in Llama's words for what every model has."""

    @classmethod
    def rope(cls, entries: Entries, head_dim: int) -> RopeConfig:
        """The rotary embedding of its layers, of those that see everything if others differ."""

    @classmethod
    def build(cls, config: ModelConfig, weights: WeightSource, ops: Ops, comm: Comm, max_model_len: int) -> Model:
        """Reads the weights one by one; ModelError names a tensor that is missing, misshapen or not the model's."""

    def cache_specs(self) -> tuple[CacheSpec | None, ...]:
        """One per layer, in order."""

    def forward(self, inputs: StepInputs, caches: Sequence[KVCache]) -> Tensor:
        """All segments of a step → the last hidden states behind the final norm, [T, hidden]"""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] → fp32 [R, vocab]"""
