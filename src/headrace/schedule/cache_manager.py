"""Grants of blocks to sequences, prefix hits, and publication of full blocks."""

from __future__ import annotations

from headrace.schedule.pool import BlockPool
from headrace.schedule.prefix import ROOT, Extra, Key, PrefixIndex
from headrace.schedule.sequence import Sequence
from headrace.words.plan import CacheLayout


class CacheManager:
    """One block table per sequence over one pool. Nothing is taken when a grant does not fit."""

    def __init__(self, layout: CacheLayout, enable_prefix_caching: bool = True) -> None:
        self.block_size = layout.block_size
        self.index = PrefixIndex()
        self.pool = BlockPool(layout.num_blocks, self.index)
        self.enable_prefix_caching = enable_prefix_caching
        self._published: dict[int, list[int]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, seq: Sequence) -> list[int]:
        """Entries of the sequence's longest cached prefix. The last token is never matched: it must be computed for
        its logits. What was found before is remembered and only checked for being alive."""
        if not self.enable_prefix_caching or not seq.request.reads_cache:
            return []
        size, tokens = self.block_size, seq.tokens
        limit = (len(tokens) - 1) // size
        entries = self._alive(seq.memo[:limit])
        for i in range(len(entries), limit):
            parent = entries[-1] if entries else ROOT
            key = Key(parent, tuple(tokens[i * size : (i + 1) * size]), extra_keys(seq, i, size))
            if (entry := self.index.find(key)) is None:
                break
            entries.append(entry)
        seq.memo = entries
        return list(entries)

    def _alive(self, entries: list[int]) -> list[int]:
        for i, entry in enumerate(entries):
            if self.index.block(entry) is None:
                return entries[:i]
        return entries

    def admit(self, seq: Sequence) -> bool:
        """Takes blocks for all known tokens, cached ones first; False takes nothing.

        The whole prompt is reserved here, so that no later chunk of it can fail for want of blocks.
        """
        entries = self.match(seq)
        hits = [block for entry in entries if (block := self.index.block(entry)) is not None]
        num_new = self.blocks_for(len(seq.tokens)) - len(hits)
        num_idle_hits = sum(self.pool.refs[block] == 0 for block in hits)
        if num_new > self.pool.num_free - num_idle_hits:
            return False
        for block in hits:
            self.pool.share(block)
        seq.block_ids = hits + self.pool.take(num_new)
        seq.entries = entries
        seq.num_computed = len(hits) * self.block_size
        return True

    def has_room(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self.blocks_for(num_tokens) - len(seq.block_ids) <= self.pool.num_free

    def grow(self, seq: Sequence, num_tokens: int) -> tuple[int, ...] | None:
        """New blocks so that `num_tokens` positions have a place; None, and nothing taken, when the pool is short."""
        num_new = self.blocks_for(num_tokens) - len(seq.block_ids)
        if num_new <= 0:
            return ()
        if num_new > self.pool.num_free:
            return None
        new = self.pool.take(num_new)
        seq.block_ids.extend(new)
        return tuple(new)

    def publish(self, seq: Sequence) -> None:
        """Makes the full blocks whose ids are known findable, also those that a step in flight is still computing."""
        size, entries = self.block_size, seq.entries
        if not self.enable_prefix_caching or seq.num_computed < (len(entries) + 1) * size:
            return
        tokens = seq.tokens
        full = min(seq.num_computed, len(tokens)) // size
        published = self._published.setdefault(seq.last_step, [])
        for i in range(len(entries), full):
            ids = tuple(tokens[i * size : (i + 1) * size])
            key = Key(entries[-1] if entries else ROOT, ids, extra_keys(seq, i, size))
            entry, is_new = self.index.publish(key, seq.block_ids[i])
            entries.append(entry)
            if is_new:
                published.append(seq.block_ids[i])

    def confirm(self, step: int) -> None:
        """The step was computed: what it published stays."""
        self._published.pop(step, None)

    def revoke(self, step: int) -> None:
        """The step failed: what it published is withdrawn before anyone can hit it again."""
        for block_id in self._published.pop(step, ()):
            self.pool.unpublish(block_id)

    def release(self, seq: Sequence) -> None:
        """Ends the sequence's lease on all its blocks."""
        self.pool.drop(seq.block_ids)
        seq.block_ids = []
        seq.entries = []
        seq.num_computed = 0

    def condemn(self, seq: Sequence) -> None:
        """The sequence's blocks may hold values that are not finite: nobody hits them, they are zeroed when reused."""
        for block_id in seq.block_ids:
            self.pool.unpublish(block_id)
        self.pool.soil(seq.block_ids)

    def take_zero_blocks(self) -> tuple[int, ...]:
        """Blocks handed out since the last call that must be zeroed before the step that uses them."""
        blocks, self.pool.to_zero = tuple(self.pool.to_zero), []
        return blocks


def extra_keys(seq: Sequence, index: int, block_size: int) -> Extra:
    """What must match beside the ids: salt and adapter on the first block, media digests where their spans lie."""
    request = seq.request
    if index > 0 and not request.spans:
        return ()
    extra: list[tuple[str, str | int]] = []
    if index == 0 and request.cache_salt is not None:
        extra.append(("salt", request.cache_salt))
    if index == 0 and request.adapter is not None:
        extra.append(("adapter", request.adapter))
    start, end = index * block_size, (index + 1) * block_size
    for span in request.spans:
        if span.start < end and span.start + span.length > start:
            extra += [("media", span.digest), ("at", span.start - start)]
    return tuple(extra)
