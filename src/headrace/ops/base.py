"""The ops that models and sampling are written in: their signatures, shapes and meaning.

A tensor is opaque here: each backend has its own kind and only it looks inside. Shapes are written
[tokens, heads, dim]; tokens of all segments of a step lie flat behind one another. Every fast backend is compared
with `ops/reference`, whose results are the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.ops.forms import BLOCK_FORMS, Form
from headrace.ops.profile import Profiler
from headrace.words.cache_spec import PagedKV

Tensor = Any
Weight = Any
"""A weight as the backend keeps it (packed, quantized), made once at load."""
Step = Any
"""What a backend's attention derives from StepInputs once a step."""
KVCache = Any
"""One layer's paged keys and values; its page layout belongs to the backend."""
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Routes = Any
"""Which experts each token goes to, and with what weight."""
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


class Blocks(NamedTuple):
    """Rows of a matrix as GGML's format of that name has them."""

    format: str
    data: NDArray[np.uint8]
    """flat; may be a view of a mapped file"""
    shape: tuple[int, int]
    order: Ints | None
    """[rows] the stored row that each one is, if not its own"""
    dequantize: Callable[[], Floats]
    """→ [rows, columns]"""

    @property
    def stored_bytes(self) -> int:
        return self.data.nbytes

    @property
    def form(self) -> Form | None:
        """None where the kernels do not know the format."""
        return BLOCK_FORMS.get(self.format)


class Integers(NamedTuple):
    """Integers of a matrix [rows, columns] as a packed format has them, one or several in each little-endian word."""

    data: NDArray[np.uint8]
    """words, flat; may be a view of a mapped file"""
    bits: int
    """4: 0 to 15; 8: −128 to 127, two's complement if `is_signed`, else stored as 128 more"""
    num_words: tuple[int, int]
    """of rows and of columns"""
    word_bytes: int = 4
    is_turned: bool = False
    """Words lie [columns, rows]."""
    holds_rows: bool = False
    """A word holds integers of consecutive rows, else of consecutive columns."""
    is_signed: bool = False
    places: tuple[int, ...] | None = None
    """Where in a word each of its integers lies, 0 in the lowest bits, if not in order."""


class Codes(NamedTuple):
    """Rows of a matrix as integers in groups along a row: each value is scale × integer + minimum."""

    integers: Integers
    shape: tuple[int, int]
    group: int
    """A multiple of 16, or a whole row; the last of a row may be shorter."""
    has_minimum: bool
    is_half: bool
    """Whether float16 holds scales and minimums."""
    scales: Callable[[], tuple[Floats, Floats | None]]
    """→ scales and, if there are any, minimums, [rows, groups]"""
    dequantize: Callable[[], Floats]
    """→ [rows, columns]"""

    @property
    def stored_bytes(self) -> int:
        """Of the integers alone."""
        return self.integers.data.nbytes

    @property
    def form(self) -> Form:
        length = 32 if self.group % 32 == 0 or self.group >= self.shape[1] else 16
        return Form(self.integers.bits, length, self.has_minimum, self.is_half)


class Unrounded(NamedTuple):
    """Rows of a matrix of numbers that is made one of integers, as `headrace.ops.rounding` says."""

    bits: int
    shape: tuple[int, int]
    values: Callable[[], NDArray[Any]]
    """→ [rows, columns] as stored"""
    dequantize: Callable[[], Floats]
    """→ [rows, columns], what the integers mean"""

    @property
    def form(self) -> Form:
        return Form(self.bits, 32, self.bits == 4, True)


Part = Blocks | Codes | Unrounded


class QuantizedMatrix(NamedTuple):
    """Parts below one another, with the same number of columns."""

    parts: tuple[Part, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def form(self) -> Form | None:
        """What kernels keep it as; None where they do not know a part, or not together: parts are of one kind, and
        those that are to be rounded get as many bits."""
        kinds = {(type(part), part.bits if isinstance(part, Unrounded) else None) for part in self.parts}
        forms = [form for part in self.parts if (form := part.form) is not None]
        return reduce(Form.beside, forms) if len(kinds) == 1 and len(forms) == len(self.parts) else None

    @property
    def num_bytes(self) -> int | None:
        """In the kernels' layout, None where they do not keep it."""
        return None if self.form is None else self.form.num_bytes(self.shape)

    def dequantize(self) -> Floats:
        return np.concatenate([part.dequantize() for part in self.parts])


class StepInputs(NamedTuple):
    """One step as flat arrays, views of buffers sized at start; the model reads nothing else.

    S segments, T tokens, B the widest block table of the step. Segment i's tokens lie at
    [query_starts[i], query_starts[i + 1]); they see keys [0, context_lens[i]), each no later than itself.
    """

    token_ids: Ints
    """[T]"""
    positions: Ints
    """[T]"""
    slots: NDArray[np.int64]
    """[T] block_id × block_size + offset, where each token's key and value go; −1 writes nothing."""
    query_starts: Ints
    """[S + 1]"""
    context_lens: Ints
    """[S] keys visible to the segment's last token, this step's included."""
    block_tables: Ints
    """[S, B] block ids in order of position, padded with the null block."""


class Forward(Protocol):
    """A model as it is run."""

    def forward(self, inputs: StepInputs, caches: Sequence[KVCache | None]) -> Tensor:
        """→ hidden states behind the last norm, [T, hidden]"""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] → fp32 [R, vocab]"""


class SamplingInputs(NamedTuple):
    """What one sampled row asks for, R rows; arrays of the worker's rows gathered for this step."""

    temperature: Floats
    """[R] 0 is greedy"""
    top_p: Floats
    """[R] 1 is off"""
    top_k: Ints
    """[R] 0 is off"""
    min_p: Floats
    """[R] 0 is off"""
    seeds: NDArray[np.uint64]
    """[R] key of the draws"""
    choices: Ints
    """[R] index of the continuation among its request's n"""
    positions: Ints
    """[R] position of the token that is drawn"""


class Penalties(NamedTuple):
    """Strengths of R rows, [R] each: a repetition of 1 is off, the others at 0."""

    repetition: Floats
    frequency: Floats
    presence: Floats


class Logprobs(NamedTuple):
    """Log-probabilities of R rows' tokens and of K alternatives each, by falling probability, ties by lowest id."""

    token_logprobs: Floats
    """[R]"""
    ranks: Ints
    """[R] place of the token among all, from 1"""
    sum_smaller_probs: Floats
    """[R] mass of the tokens less likely than the token"""
    top_ids: Ints
    """[R, K]"""
    top_logprobs: Floats
    """[R, K]"""

    @classmethod
    def room(cls, num_rows: int, num_top: int) -> Logprobs:
        """Arrays of these shapes, to be filled."""
        each, top = num_rows, (num_rows, num_top)
        kinds = ((each, np.float32), (each, np.int32), (each, np.float32), (top, np.int32), (top, np.float32))
        return cls._make(np.empty(shape, kind) for shape, kind in kinds)


class Wanted(NamedTuple):
    """Logits of R of a step's tokens, N drawn of those as `sampling` says, M of them scored."""

    tokens: Ints
    """[R] index among the step's tokens, rising"""
    drawn: Ints
    """[N] index among the R, rising"""
    sampling: SamplingInputs
    scored: Ints
    """[M] index among the N, rising"""
    num_top: int
    """alternatives of each of the M"""
    hidden: bool
    """hidden states of all tokens"""


class Computed(NamedTuple):
    """What a step gave. The hidden states and the logits hold until the model's next step."""

    hidden: Tensor | None
    """[T, hidden], None unless wanted"""
    logits: Tensor
    """[R, vocab]"""
    is_finite: NDArray[np.bool_]
    """[N] as `finite_rows` says; the others' tokens and log-probabilities mean nothing"""
    token_ids: Ints
    """[N]"""
    logprobs: Logprobs
    """of the M"""


class StepModel(Forward, Protocol):
    """A model on its caches, run a step at a time; `profiler` is None where ops are not timed."""

    profiler: Profiler | None

    def run(self, inputs: StepInputs, caches: Sequence[KVCache | None], wanted: Wanted) -> Computed: ...


class SamplingOps(Protocol):
    """From logits to tokens. Logits are fp32 [R, vocab]; `rows` and `token_ids` [N] name N single entries of them.

    What edits logits does so in place. −inf is a forbidden token.
    """

    def finite_rows(self, logits: Tensor) -> NDArray[np.bool_]:
        """[R], whether a row holds no NaN and no +inf and is not all −inf"""

    def keep_tokens(self, logits: Tensor, rows: Ints, token_ids: Ints) -> None:
        """Forbids, in every row that is named, all tokens that are not named for it."""

    def mask_tokens(self, logits: Tensor, rows: Ints, token_ids: Ints) -> None:
        """Forbids the named tokens."""

    def mask_bits(self, logits: Tensor, rows: Ints, bits: NDArray[np.uint32]) -> None:
        """rows [M], bits [M, ceil(vocab / 32)]: forbids token 32·w + i where bit i of word w is 0."""

    def add_bias(self, logits: Tensor, rows: Ints, token_ids: Ints, bias: Floats) -> None:
        """Adds bias [N] to the named entries, each named once."""

    def penalize(self, logits: Tensor, rows: Ints, token_ids: Ints, counts: Ints, penalties: Penalties) -> None:
        """Names every token of a row's text once; `counts` [N] says how often the output holds it (0: prompt only).
        Repetition divides a positive logit and multiplies another; then, where the count is above 0, frequency × count
        and after it presence are taken off."""

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Ints:
        """[R] token ids: argmax if temperature is 0 (ties to the lowest id), else temperature → min_p → top_k (keeps
        ties) → top_p (keeps one) → argmax(log p + keyed Gumbel noise). Every row holds a finite value."""

    def truncate(self, logits: Tensor, inputs: SamplingInputs) -> Tensor:
        """New logits whose softmax is what `sample` draws from; greedy rows stay as they are."""

    def logprobs(self, logits: Tensor, token_ids: Ints, num_top: int) -> Logprobs:
        """[R] → log-softmax at the tokens and at the `num_top` most likely ones of each row."""


class Ops(SamplingOps, Protocol):
    """One backend. Activations have `dtype`; logits and everything about sampling are fp32."""

    dtype: str
    keeps_blocks: bool
    """Whether a quantized matrix stays quantized; where not, it is as well to hand over its values."""

    def weight(self, array: NDArray[Any] | QuantizedMatrix) -> Weight:
        """Takes a matrix [out, in] or vector; float32, float16, or bfloat16 held as uint16; or a quantized matrix.
        Not kept twice."""

    def kv_caches(self, num_blocks: int, block_size: int, layers: Sequence[PagedKV]) -> list[KVCache]:
        """Zeroed pages for each layer, of the ops' dtype or int8.

        int8: each key and each value of a head is round(x / s), ties to even, with s = max|x| / 127 in fp32; below
        2^-100 all are 0, and what is not finite has s = NaN and zeros. They are read back as s times that."""

    def zero_blocks(self, cache: KVCache, block_ids: Sequence[int]) -> None: ...

    def compile(
        self, model: Forward, caches: Sequence[KVCache | None], max_num_tokens: int, max_num_draws: int
    ) -> StepModel:
        """What runs the model on these caches in steps of up to so many tokens, up to so many of them with logits."""

    def begin(self, inputs: StepInputs) -> Step:
        """What all layers of one step derive from its inputs, made once."""

    def embed(self, ids: Ints, table: Weight) -> Tensor:
        """[T], [vocab, hidden] → [T, hidden]; the step's token ids, or its positions where those are learned."""

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None, is_summand: bool = False) -> Tensor:
        """[T, in], [out, in], [out] → [T, out]. What is only added to something may be kept in fp32 until then."""

    def rms_norm(self, x: Tensor, weight: Weight, eps: float, offset: float = 0.0) -> Tensor:
        """[…, dim] → […, dim]: x / rms(x) × (offset + weight), all in fp32 and rounded once"""

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight, eps: float) -> Tensor:
        """[T, dim] → [T, dim]: (x − mean) / deviation × weight + bias, all in fp32 and rounded once"""

    def add(self, x: Tensor, y: Tensor) -> Tensor: ...

    def scale(self, x: Tensor, factor: float) -> Tensor: ...

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """[T, inner] → [T, inner]"""

    def glu(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """[T, 2 × inner] → activation(first half) × second half, [T, inner]"""

    def route(self, x: Tensor, router: Weight, num_chosen: int, renormalize: bool) -> Routes:
        """[T, hidden], [experts, hidden] → for each token `num_chosen` experts by falling logit, ties to the lowest id,
        with weights: the softmax over all experts, or, renormalized, over those chosen. Logits and weights are fp32."""

    def experts(
        self, x: Tensor, routes: Routes, gate_up: Sequence[Weight], down: Sequence[Weight], activation: Activation
    ) -> Tensor:
        """[T, hidden], per expert [2 × inner, hidden] and [hidden, inner] → [T, hidden]: the sum, in the order of a
        token's experts, of weight × down(glu(gate_up(x))). The sum and its terms are fp32, rounded once at the end."""

    def split_heads(self, x: Tensor, sizes: Sequence[int], head_dim: int) -> tuple[Tensor, ...]:
        """[T, sum(sizes) × head_dim] → one [T, size, head_dim] per size"""

    def angles(self, table: Floats, step: Step) -> Tensor:
        """[positions, R] (R / 2 cosines, then as many sines) → those of the step's tokens, fp32 [T, R]"""

    def rotate(self, x: Tensor, angles: Tensor) -> Tensor:
        """[T, heads, dim]: the first R of each head are rotated in fp32, dimension i with i + R / 2."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KVCache,
        step: Step,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Writes k and v [T, kv_heads, dim] to the step's slots, then each query [T, heads, dim] attends to the cached
        keys of its own sequence up to its own position → [T, heads × dim]. K and V are read back from the cache."""

    def gather(self, x: Tensor, rows: Ints) -> Tensor:
        """[T, width], [R] → a copy of these rows, [R, width]"""

    def logits(self, hidden: Tensor, weight: Weight, scale: float = 1.0, soft_cap: float | None = None) -> Tensor:
        """[R, hidden], [vocab, hidden] → fp32 [R, vocab], times `scale`, then c · tanh(logit / c) for a soft cap c"""

    def to_numpy(self, x: Tensor) -> Floats:
        """fp32 copy or view on the host."""
