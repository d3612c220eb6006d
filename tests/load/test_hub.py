"""Where a model is looked for: here, among the aliases, on the hub (its cache only: tests do not reach out)."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.load import folder as f

from headrace.load.checkpoint import open_checkpoint
from headrace.load.hub import resolve_source
from headrace.words.errors import ModelError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refusal(*arguments) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_source(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_or_a_file_is_itself(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert resolve_source(str(tmp_path)) == tmp_path
    assert resolve_source(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_source("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("/nowhere/model.gguf", "model.gguf: no such file or folder"),
        ("./nowhere", "nowhere: no such file or folder"),
        ("nowhere.gguf", "nowhere.gguf: no such file or folder"),
        ("~/nowhere-at-all", "nowhere-at-all: no such file or folder"),
        ("smollm2-153m", "did you mean 'smollm2-135m'?"),
        ("gpt", "(HF_HUB_OFFLINE); aliases are: smollm2-135m"),
        ("", "'': is no folder"),
        ("a\0b", "or alias; aliases are: smollm2-135m"),
        ("x" * 9000, "is no folder"),
        ("two\nlines", "is no folder"),
        ("a/b/c", "is no folder"),
    ],
)
def test_what_is_nowhere_is_refused_with_a_hint(model, words):
    message = refusal(model)
    assert words in message and len(message) < 250


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"something else")
    with pytest.raises(ModelError, match=r"^model\.bin: is not a GGUF file"):
        open_checkpoint(str(tmp_path / "model.bin"))


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_repository_in_the_cache_is_opened_offline(hub_cache):
    home = hub_cache / "models--someone--tiny"
    f.write(home / "snapshots" / COMMIT)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    assert resolve_source("someone/tiny") == home / "snapshots" / COMMIT
    assert resolve_source("someone/tiny", COMMIT) == home / "snapshots" / COMMIT
    with open_checkpoint("someone/tiny") as checkpoint:
        assert checkpoint.config.vocab_size == 258


def test_a_repository_that_is_not_in_the_cache_is_refused_in_one_line(hub_cache):
    assert refusal("someone/else") == (
        "someone/else: is not in the local cache, and the hub cannot be reached or must not be (HF_HUB_OFFLINE)"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "cannot be fetched from the hub: [Errno 28] No space left on device"),
        (RuntimeError(), "cannot be fetched from the hub: RuntimeError"),
        (ValueError("two\nlines"), "cannot be fetched from the hub: two lines"),
    ],
)
def test_whatever_the_hub_complains_of_is_one_line(monkeypatch, error, words):
    def stand_in(*arguments, **keywords):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in)
    assert refusal("someone/tiny") == f"someone/tiny: {words}"
