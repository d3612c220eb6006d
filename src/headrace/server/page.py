"""The web page, where one was built into `static/`: served at `/` under a strict policy, open to all."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.responses import Response

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
}


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
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    caching = "no-cache" if file.suffix == ".html" else "public, max-age=3600"
    return Response(file.read_bytes(), headers={**HEADERS, "cache-control": caching}, media_type=kind)
