"""What every kind of checkpoint is taken apart into."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from headrace.load.tokenizer import Tokenizer
from headrace.ops.base import Part
from headrace.words.config import ModelConfig


class Tensors(Protocol):
    """Tensors by Hugging Face's names: float32, float16, or bfloat16 held as uint16."""

    @property
    def file(self) -> str:
        """The name of the file that says which tensors there are."""

    @property
    def nbytes(self) -> int: ...

    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str: ...

    def get(self, name: str) -> NDArray[Any]: ...

    def sample(self, name: str) -> bytes:
        """A few bytes of the tensor as it is stored, the same ones each time."""


class Weights(Tensors, Protocol):
    """What a model is made of."""

    def blocks(self, name: str, is_turned: bool = False) -> Part | None:
        """See `headrace.layers.weights.WeightSource`; None, too, if a matrix is not kept row by row."""


class Parts(NamedTuple):
    """`tokenizer` makes it when called, for another may be wanted; `close` unmaps the files, twice is once."""

    config: ModelConfig
    weights: Weights
    tokenizer: Callable[[], Tokenizer]
    generation: Mapping[str, Any]
    close: Callable[[], None]
