"""The block pool: who holds which block, and which free block is taken next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from headrace.schedule.prefix import PrefixIndex
from headrace.words.plan import NULL_BLOCK


class BlockPool:
    """Blocks 1 … num_blocks − 1; block 0 is the null block and never handed out.

    A free block whose content is published stays findable until it is taken again, least recently used first;
    unpublished ones are taken before. `dirty` blocks were left by an owner that ended non-finite or failed.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.num_blocks = num_blocks
        self.index = index
        self.refs = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._dirty: set[int] = set()
        self._leases: dict[Hashable, tuple[int, ...]] = {}
        self.to_zero: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def take(self, count: int) -> list[int]:
        """`count` blocks with one reference each; the caller has checked `num_free`."""
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._blank:
            block_id = self._blank.pop()
        else:
            block_id, _ = self._cached.popitem(last=False)
            self.index.forget_block(block_id)
        if block_id in self._dirty:
            self._dirty.discard(block_id)
            self.to_zero.append(block_id)
        self.refs[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """One more holder of a published block."""
        if self.refs[block_id] == 0:
            del self._cached[block_id]
        self.refs[block_id] += 1

    def drop(self, block_ids: Sequence[int]) -> None:
        """One holder less for each block, last block first, so that a chain's tail is reused before its head."""
        for block_id in reversed(block_ids):
            self.refs[block_id] -= 1
            assert self.refs[block_id] >= 0, f"block {block_id} was freed twice"
            if self.refs[block_id] == 0:
                self._put_back(block_id)

    def _put_back(self, block_id: int) -> None:
        if self.index.has_block(block_id):
            self._cached[block_id] = None
        else:
            self._blank.append(block_id)

    def unpublish(self, block_id: int) -> None:
        """The block's content is not to be found any more; its holders keep it."""
        if not self.index.has_block(block_id):
            return
        self.index.forget_block(block_id)
        if self.refs[block_id] == 0:
            del self._cached[block_id]
            self._blank.append(block_id)

    def soil(self, block_ids: Sequence[int]) -> None:
        """Marks blocks to be zeroed when they are handed out next."""
        self._dirty.update(block_ids)

    def lease(self, holder: Hashable, block_ids: Sequence[int]) -> None:
        """A holder beside the sequences (a step off the in-order stream, a transfer) keeps blocks from new owners."""
        assert holder not in self._leases, f"{holder} holds a lease already"
        for block_id in block_ids:
            self.share(block_id)
        self._leases[holder] = tuple(block_ids)

    def end_lease(self, holder: Hashable) -> None:
        """Ends a lease; ending one twice is no error."""
        self.drop(self._leases.pop(holder, ()))

    @property
    def has_leases(self) -> bool:
        return bool(self._leases)

    def leased(self) -> list[int]:
        return [block_id for blocks in self._leases.values() for block_id in blocks]

    def free_ids(self) -> tuple[list[int], list[int]]:
        """(blank, cached) free blocks, for checks."""
        return list(self._blank), list(self._cached)
