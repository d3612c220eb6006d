"""The web page, where one was built into `static/`: served at `/` under a strict policy, open to all."""

from __future__ import annotations

import gzip
import mimetypes
from functools import lru_cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept-encoding",
}
KINDS = {".js": "text/javascript", ".woff2": "font/woff2", ".svg": "image/svg+xml"}
"""Where the system's own table may differ."""
HASHED = "/assets/"
"""Names below it change with what they hold."""


def read_files(folder: Path = STATIC) -> dict[str, Path]:
    """Every file of the page by its path on the server; the folder's index also stands at `/`."""
    if not (folder / "index.html").is_file():
        return {}
    files = {f"/{p.relative_to(folder).as_posix()}": p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {"/": folder / "index.html", **files}


FILES = read_files()


def is_open(path: str) -> bool:
    """Whether a path is a file of the page, which asks for the key itself."""
    return path in FILES


def serve(path: str) -> Response:
    """A file of FILES."""
    file = FILES[path]
    kind = KINDS.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    caching = "public, max-age=31536000, immutable" if path.startswith(HASHED) else "no-cache"
    return _Compressed(_packed(file), file.read_bytes(), {**HEADERS, "cache-control": caching}, kind)


@lru_cache(maxsize=64)
def _packed(file: Path) -> bytes | None:
    """None for what is compressed already."""
    return None if file.suffix == ".woff2" else gzip.compress(file.read_bytes(), 9, mtime=0)


class _Compressed(Response):
    """Goes out compressed to whoever accepts it."""

    def __init__(self, packed: bytes | None, content: bytes, headers: dict[str, str], kind: str) -> None:
        super().__init__(content, headers=headers, media_type=kind)
        self._packed = packed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._packed is not None and "gzip" in Headers(scope=scope).get("accept-encoding", ""):
            self.body = self._packed
            self.headers["content-length"] = str(len(self._packed))
            self.headers["content-encoding"] = "gzip"
        await super().__call__(scope, receive, send)
