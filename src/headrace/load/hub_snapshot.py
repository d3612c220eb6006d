"""One snapshot of a repository on the Hugging Face hub, each file with its own progress.

What the hub's own library knows is left to it: cache, offline mode, tokens, endpoints, proxies, and files in pieces.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from headrace.load.default_model import Progress
from headrace.words.errors import ModelError, brief

LEFT = ("*/*", "consolidated*")
"""Folders of a repository, and files so named, hold other formats of the same weights."""
NUM_FILES_AT_ONCE = 4
MAX_CAUSE_CHARS = 200


def snapshot(
    model: str, revision: str | None, wanted: Sequence[str], progress: Progress | None, hint: str = ""
) -> Path:
    """The folder with the files that match `wanted`, all of the one commit that `revision` names now.

    HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and their like are respected. ModelError in one line otherwise, which
    ends with the `hint` where there is no such repository.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return fetch(model, revision, wanted, progress)
    except GatedRepoError:
        cause = "is gated on the hub; accept its terms there and set HF_TOKEN"
    except RepositoryNotFoundError:
        cause = f"is not on the hub, or not for this token (HF_TOKEN){hint}"
    except RevisionNotFoundError:
        cause = f"has no revision {brief(revision)} on the hub"
    except LocalEntryNotFoundError:
        cause = f"is not in the local cache, and the hub cannot be reached or must not be (HF_HUB_OFFLINE){hint}"
    except Exception as error:
        shown = " ".join(str(error).split())[:MAX_CAUSE_CHARS] or type(error).__name__
        cause = f"cannot be fetched from the hub: {shown}"
    raise ModelError(model, cause)


def fetch(model: str, revision: str | None, wanted: Sequence[str], progress: Progress | None) -> Path:
    """What is missing first, several files at once; then the snapshot as a whole, which is the library's to judge."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import DryRunError

    chosen: dict[str, Any] = {"allow_patterns": list(wanted), "ignore_patterns": list(LEFT)}
    chosen["tqdm_class"] = bar_class("", 0, None)
    try:
        plan = snapshot_download(model, revision=revision, dry_run=True, **chosen)
    except DryRunError:
        plan = []
    commit = plan[0].commit_hash if plan else revision
    missing = [file for file in plan if file.will_download]

    def download(file: Any) -> None:
        bar = bar_class(file.filename, file.file_size or 0, progress)
        hf_hub_download(model, file.filename, revision=commit, tqdm_class=bar)

    if missing:
        with ThreadPoolExecutor(NUM_FILES_AT_ONCE) as pool:
            list(pool.map(download, missing))
    return Path(snapshot_download(model, revision=commit, **chosen))


def cached_snapshot(model: str, revision: str | None = None) -> Path | None:
    """The snapshot that the hub's cache has of a name, with its config.json at least."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


class Cached(NamedTuple):
    """A repository in the hub's cache."""

    name: str
    num_bytes: int
    folder: Path | None
    """Of its main revision, None where that is not there."""


def cached_models() -> list[Cached]:
    """Every model in the hub's cache, by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = sorted((r for r in repositories if r.repo_type == "model"), key=lambda r: r.repo_id)
    return [Cached(r.repo_id, r.size_on_disk, cached_snapshot(r.repo_id)) for r in models]


_TELLING = threading.Lock()


def bar_class(name: str, total: int, progress: Progress | None) -> Any:
    """A bar that draws nothing: it tells `progress` how many bytes of a file are there. What several bars of one file
    count (what was received, what was put together) never goes backwards."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    most = 0

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})
            self._num_bytes = options.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            self._num_bytes += int(n or 0)
            if progress is None or not total:
                return
            with _TELLING:
                most = max(most, min(self._num_bytes, total))
                progress(name, most, total)

    return Bar
