"""Which layers attend to everything before a token and which only to the last tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.layers.entries import Entries

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_types(entries: Entries, num_layers: int, slides: Callable[[int], bool]) -> tuple[str, ...]:
    """One of FULL and SLIDING per layer: `layer_types`, or where a file is silent, sliding where `slides(index)`."""
    told = entries.list_of("layer_types", (FULL, SLIDING), num_layers)
    return told or tuple(SLIDING if slides(i) else FULL for i in range(num_layers))


def windows(types: Sequence[str], size: int | None) -> tuple[int | None, ...]:
    """The window of each layer; a sliding layer without a size sees all."""
    return tuple(size if kind == SLIDING else None for kind in types)
