"""Memory that requests share while they are read."""

from __future__ import annotations

from types import TracebackType


class Room:
    """Bytes that all may take together. Used from one thread."""

    def __init__(self, num_bytes: int) -> None:
        self.num_free = num_bytes

    def share(self) -> Share:
        return Share(self)


class Share:
    """What one has of a room, until the block ends."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._num_bytes = 0

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.num_free += self._num_bytes
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> bool:
        """Whether there was room for so many in all; nothing is taken if not."""
        more = max(0, num_bytes - self._num_bytes)
        if more > self._room.num_free:
            return False
        self._room.num_free -= more
        self._num_bytes += more
        return True
