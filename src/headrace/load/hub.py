"""Where a model is: a file or folder here, an alias, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headrace.load.default_model import EMBEDDED, Progress, fetch
from headrace.words.errors import ModelError, nearest

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
WANTED = ["*.json", "*.safetensors", "*.jinja"]


def resolve_source(model: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """A folder or a .gguf file on this machine. ModelError in one line when there is none."""
    path = Path(model).expanduser()
    if path.is_dir() or path.is_file():
        return path
    if model in EMBEDDED:
        return fetch(model, progress)
    if model.startswith((".", "/", "~")) or model.endswith(".gguf"):
        raise ModelError(path.name, "no such file or folder")
    if HUB_NAME.fullmatch(model):
        return snapshot(model, revision)
    hint = nearest(model, EMBEDDED)
    raise ModelError(model, f"is no folder, .gguf file, name on the hub (owner/name) or alias{hint}")


def snapshot(model: str, revision: str | None) -> Path:
    """One snapshot of a hub repository, resolved once; HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are respected."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=WANTED))
    except RepositoryNotFoundError:
        raise ModelError(model, "is not on the hub, or not for this token (HF_TOKEN)") from None
    except LocalEntryNotFoundError:
        raise ModelError(model, "is not in the local cache, and the hub cannot be reached") from None
    except HfHubHTTPError as error:
        raise ModelError(model, f"cannot be fetched from the hub: {str(error).splitlines()[0]}") from None
    except (OSError, ValueError) as error:
        raise ModelError(model, f"cannot be fetched from the hub: {str(error).splitlines()[0]}") from None
