"""The prefix cache's index: an exact trie over blocks of token ids; no digests, so nothing to verify."""

from __future__ import annotations

from typing import NamedTuple

ROOT = 0
Extra = tuple[tuple[str, str | int], ...]
"""Tagged keys that must match beside the ids: ("salt", …), ("adapter", …), ("media", …)."""


class Key(NamedTuple):
    parent: int
    ids: tuple[int, ...]
    extra: Extra


class PrefixIndex:
    """Entry ids are never reused, so a remembered id is either alive and the same, or gone."""

    def __init__(self) -> None:
        self._entries: dict[Key, int] = {}
        self._blocks: dict[int, tuple[Key, int]] = {}
        self._entry_of_block: dict[int, int] = {}
        self._next_id = ROOT + 1

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, key: Key) -> int | None:
        """The entry of a full block with these ids behind this parent."""
        return self._entries.get(key)

    def block(self, entry: int) -> int | None:
        """The block that holds an entry, None when the entry is gone."""
        found = self._blocks.get(entry)
        return None if found is None else found[1]

    def key(self, entry: int) -> Key:
        return self._blocks[entry][0]

    def has_block(self, block_id: int) -> bool:
        return block_id in self._entry_of_block

    def publish(self, key: Key, block_id: int) -> tuple[int, bool]:
        """The entry for `key`, and whether `block_id` is now the block behind it (another block may be already)."""
        entry = self._entries.setdefault(key, self._next_id)
        if entry != self._next_id:
            return entry, False
        self._next_id += 1
        self._blocks[entry] = (key, block_id)
        self._entry_of_block[block_id] = entry
        return entry, True

    def forget_block(self, block_id: int) -> None:
        """Removes the entry that a block holds, if any; entries of other blocks are never touched."""
        entry = self._entry_of_block.pop(block_id, None)
        if entry is not None:
            key, _ = self._blocks.pop(entry)
            del self._entries[key]

    def entries(self) -> dict[int, tuple[Key, int]]:
        """entry → (key, block id), for checks."""
        return dict(self._blocks)
