"""A forward is prose over ops: it looks into nothing, so that it can be recorded once on symbols."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.cases import CASES, case
from tests.models.driver import DictSource

from headrace.comm import SoloComm
from headrace.models.registry import family


class Opaque:
    """A tensor of which nothing can be asked, neither truth nor length nor shape."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise AssertionError("a forward asked whether a tensor is true")


class Inputs:
    """The step's inputs, each a symbol of its own."""

    def __init__(self) -> None:
        self.token_ids, self.positions = Opaque(), Opaque()


class WritingOps:
    """Writes down which op was called with which operands."""

    dtype = "float32"

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def weight(self, array: Any) -> Opaque:
        return Opaque()

    def split_heads(self, x: Any, sizes: Any, head_dim: int) -> tuple[Opaque, ...]:
        self.calls.append(("split_heads", (x,)))
        return tuple(Opaque() for _ in sizes)

    def __getattr__(self, name: str) -> Any:
        def op(*operands: Any, **options: Any) -> Opaque:
            self.calls.append((name, operands))
            return Opaque()

        return op


def record(name: str) -> tuple[Inputs, list[tuple[str, tuple[Any, ...]]]]:
    ops, inputs = WritingOps(), Inputs()
    config = case(name).config()
    model = family(config.architecture).build(config, DictSource(case(name).arrays), ops, SoloComm(), 64)
    assert not ops.calls, "building a model computes nothing"
    model.logits(model.forward(inputs, [Opaque() for _ in range(config.num_layers)]))
    return inputs, ops.calls


@pytest.mark.parametrize("name", CASES)
def test_a_forward_can_be_recorded_on_symbols(name):
    inputs, calls = record(name)
    names = [op for op, _ in calls]
    assert names[0] == "begin" and names[-1] == "logits" and names.count("attend") == 3
    embedded = [operands[0] for op, operands in calls if op == "embed"]
    assert embedded == [inputs.token_ids] + [inputs.positions] * ("gpt2" in name)


def test_angles_are_looked_up_once_a_step_for_each_table():
    for name, count in [("mistral", 1), ("gemma3", 2), ("gpt2", 0)]:
        assert [op for op, _ in record(name)[1]].count("angles") == count


def test_layers_without_positions_are_not_rotated():
    assert [op for op, _ in record("smollm3")[1]].count("rotate") == 2 * 2
    assert [op for op, _ in record("qwen3")[1]].count("rotate") == 3 * 2
