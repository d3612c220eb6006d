"""Log-probabilities as results carry them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.ops.base import Ints, Logprobs
from headrace.words.outputs import TokenLogprobs
from headrace.words.params import Sampling

CONFIDENCE_TOP = 20
"""DeepConf's k: the confidence of a token is minus the mean log-probability of the 20 most likely ones."""


def num_top(sampling: Sampling) -> int:
    """Alternatives that must be known of a token drawn with these parameters."""
    return max(sampling.logprobs or 0, CONFIDENCE_TOP if sampling.token_confidence else 0)


def drawn_entries(found: Logprobs, token_ids: Ints, params: Sequence[Sampling]) -> list[TokenLogprobs]:
    """One entry per drawn token: itself first, then `logprobs` alternatives, and what else its request asked for."""
    entries = []
    columns = (column.tolist() for column in found)
    for token_id, sampling, logprob, rank, smaller, ids, logprobs in zip(
        token_ids.tolist(), params, *columns, strict=True
    ):
        entry = _entry(token_id, logprob, rank, ids, logprobs, sampling.logprobs or 0)
        entries.append(
            entry._replace(
                sum_smaller_probs=smaller if sampling.sum_smaller_probs else None,
                token_confidence=_confidence(logprobs) if sampling.token_confidence else None,
            )
        )
    return entries


def prompt_entries(found: Logprobs, token_ids: Ints) -> list[TokenLogprobs]:
    """One entry per prompt token, with all alternatives there are."""
    entries = []
    columns = (found.token_logprobs, found.ranks, found.top_ids, found.top_logprobs)
    for token_id, logprob, rank, ids, logprobs in zip(
        token_ids.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        entries.append(_entry(token_id, logprob, rank, ids, logprobs, len(ids)))
    return entries


def _entry(
    token_id: int, logprob: float, rank: int, ids: list[int], logprobs: list[float], count: int
) -> TokenLogprobs:
    """Forbidden tokens are no alternatives."""
    count = sum(value != -math.inf for value in logprobs[:count])
    return TokenLogprobs((token_id, *ids[:count]), (logprob, *logprobs[:count]), rank)


def _confidence(logprobs: list[float]) -> float:
    finite = [value for value in logprobs[:CONFIDENCE_TOP] if value != -math.inf]
    return -sum(finite) / len(finite)
