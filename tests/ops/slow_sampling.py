"""The slow twin of the sampling ops: whole sorts, float64, one row at a time, every token's noise."""

import numpy as np

from headrace.ops import draws
from headrace.ops.base import SamplingInputs


def sampling_inputs(num_rows: int, **values: object) -> SamplingInputs:
    """R equal rows at temperature 1 and nothing else, but for `values` (numbers or lists); positions differ."""
    defaults: dict[str, object] = dict(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seeds=7, choices=0, positions=np.arange(num_rows)
    )
    kinds = dict(top_k=np.int32, seeds=np.uint64, choices=np.int32, positions=np.int32)
    return SamplingInputs(
        **{
            name: np.broadcast_to(np.asarray(value, kinds.get(name, np.float32)), num_rows).copy()
            for name, value in (defaults | values).items()
        }
    )


def kept(row: np.ndarray, inputs: SamplingInputs, i: int) -> np.ndarray:
    """Which tokens of a row may be drawn, [vocab] bool."""
    gaps = (row - row.max()) / inputs.temperature[i]
    keep = gaps > -np.inf
    if inputs.min_p[i] > 0:
        keep &= gaps >= np.float32(np.log(np.float64(inputs.min_p[i])))
    if 0 < inputs.top_k[i] < row.size:
        keep &= gaps >= np.sort(gaps)[-inputs.top_k[i]]
    if inputs.top_p[i] < 1:
        order = np.lexsort((np.arange(row.size), -gaps))
        order = order[keep[order]]
        p = np.exp(gaps[order].astype(np.float64))
        before = np.cumsum(p) - p
        keep = np.zeros_like(keep)
        keep[order[: max(1, int((before < np.float64(inputs.top_p[i]) * p.sum()).sum()))]] = True
    return keep


def sample(logits: np.ndarray, inputs: SamplingInputs) -> list[int]:
    ids = np.arange(logits.shape[1], dtype=np.int32)
    low, high = draws.keys(inputs.seeds, inputs.choices, inputs.positions)
    tokens = []
    for i, row in enumerate(logits):
        if inputs.temperature[i] == 0:
            tokens.append(int(row.argmax()))
            continue
        gaps = np.where(kept(row, inputs, i), (row - row.max()) / inputs.temperature[i], np.float32(-np.inf))
        tokens.append(int((gaps + draws.noise(ids, low[i], high[i])).argmax()))
    return tokens
