"""One layer's pages. Heads lie outside of positions, so that a head's keys can be gathered in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from headrace.ops.reference.step import Group, Step


@dataclass
class PagedCache:
    """Keys and values, [blocks, kv_heads, block_size, dim] each."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def num_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def write(self, k: torch.Tensor, v: torch.Tensor, step: Step) -> None:
        """k and v [T, kv_heads, dim] to the step's slots; a slot of −1 writes nothing."""
        if step.writing is not None:
            k, v = k[step.writing], v[step.writing]
        places = step.places(self)
        self.keys.flatten(0, 2).index_copy_(0, places, k.flatten(0, 1))
        self.values.flatten(0, 2).index_copy_(0, places, v.flatten(0, 1))

    def read(self, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a group's pages, [B, kv_heads, places, dim]. What lies behind a row's last key is stale:
        values are zeroed there, since 0 × NaN is NaN; keys are not."""
        keys, values = self._read(self.keys, group), self._read(self.values, group)
        group.zero_tails(values)
        return keys, values

    def _read(self, storage: torch.Tensor, group: Group) -> torch.Tensor:
        _, heads, _, dim = storage.shape
        return storage.flatten(0, 1).index_select(0, group.pages).view(group.num_rows, heads, -1, dim)
