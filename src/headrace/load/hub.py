"""Where a model is: a file or folder here, an alias, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from headrace.load.default_model import EMBEDDED, Progress, cache_folder, fetch
from headrace.words.errors import ModelError, brief, nearest

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("*.json", "*.jinja")
MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors")
BELOW = ("*/*",)
"""Folders of a repository hold other formats of the same weights."""


def resolve_source(
    model: str, revision: str | None = None, progress: Progress | None = None, wanted: Sequence[str] = MODEL_FILES
) -> Path:
    """A folder or a file on this machine; of a hub repository the `wanted` files. ModelError in one line if none."""
    name = os.path.expanduser(model)
    if model and (os.path.isdir(name) or os.path.isfile(name)):
        return Path(name)
    if model in EMBEDDED:
        return fetch(EMBEDDED[model], cache_folder(), progress)
    if model.startswith((".", "/", "~")) or model.endswith(".gguf"):
        raise ModelError(os.path.basename(name) or model, "no such file or folder")
    if HUB_NAME.fullmatch(model):
        return snapshot(model, revision, wanted)
    hint = nearest(model, EMBEDDED)
    raise ModelError(brief(model), f"is no folder, .gguf file, name on the hub (owner/name) or alias{hint}")


def snapshot(model: str, revision: str | None, wanted: Sequence[str]) -> Path:
    """One snapshot of a hub repository; HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are respected."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(model, revision=revision, allow_patterns=list(wanted), ignore_patterns=list(BELOW))
        )
    except GatedRepoError:
        cause = "is gated on the hub; accept its terms there and set HF_TOKEN"
    except RepositoryNotFoundError:
        cause = "is not on the hub, or not for this token (HF_TOKEN)"
    except RevisionNotFoundError:
        cause = f"has no revision {brief(revision)} on the hub"
    except LocalEntryNotFoundError:
        cause = "is not in the local cache, and the hub cannot be reached or must not be (HF_HUB_OFFLINE)"
    except Exception as error:
        cause = f"cannot be fetched from the hub: {' '.join(str(error).split())[:200] or type(error).__name__}"
    raise ModelError(model, cause)
