"""Where a model is: a file or folder here, an alias, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from headrace.load.default_model import EMBEDDED, Progress, cache_folder, fetch
from headrace.load.hub_snapshot import cached_snapshot, snapshot
from headrace.words.errors import ModelError, brief, nearest

HUB_NAME = re.compile(r"(?:[\w.-]{1,96}/)?[\w.-]{1,96}", re.ASCII)
"""Its oldest models have no owner."""
TOKENIZER_FILES = ("*.json", "*.jinja")
MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors")


def find_here(model: str, revision: str | None = None) -> Path:
    """As `resolve_source`, of what is on this machine already. ModelError says how to fetch what is not."""
    if model in EMBEDDED:
        path = cache_folder() / Path(EMBEDDED[model].member).name
        if path.exists():
            return path
    elif os.path.exists(os.path.expanduser(model)) or not HUB_NAME.fullmatch(model) or model.endswith(".gguf"):
        return resolve_source(model, revision)
    elif (folder := cached_snapshot(model, revision)) is not None:
        return folder
    raise ModelError(model, f"is not on this machine yet; fetch it: headrace models pull {model}")


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
        return snapshot(model, revision, wanted, progress, "" if "/" in model else meant(model))
    raise ModelError(brief(model), f"is no folder, .gguf file, name on the hub (owner/name) or alias{meant(model)}")


def meant(model: str) -> str:
    """The alias that is nearly so spelled, or all there are, as the end of an error's sentence."""
    return nearest(model, EMBEDDED) or f"; aliases are: {', '.join(EMBEDDED)}"
