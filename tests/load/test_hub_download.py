"""Models of a hub on loopback: fetched once, whole, of one commit, by the hub's own library and its variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from tests.load import folder as f
from tests.load.local_hub import Repository, serving

from headrace.load.checkpoint import open_checkpoint, open_tokenizer
from headrace.load.hub import TOKENIZER_FILES, resolve_source
from headrace.words.errors import ModelError

OLD, NEW = "a" * 40, "b" * 40
SHARD = "model-0000{}-of-00002.safetensors"
SHARDS = [dict(list(f.TENSORS.items())[:1]), dict(list(f.TENSORS.items())[1:])]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A repository's: two shards with an index, and what nobody should fetch."""
    names = {SHARD.format(i + 1): shard for i, shard in enumerate(SHARDS)}
    index = {"weight_map": {tensor: name for name, shard in names.items() for tensor in shard}}
    shards = {name: f.safetensors(shard) for name, shard in names.items()}
    more = {"model.safetensors": None, "model.safetensors.index.json": index, **shards}
    written = f.write(tmp_path_factory.mktemp("repository"), **more)
    found = {path.name: path.read_bytes() for path in written.iterdir()}
    unread = ["pytorch_model.bin", "README.md", "onnx/model.safetensors", "consolidated.safetensors"]
    return found | dict.fromkeys(unread, b"not for us" * 9)


@pytest.fixture
def hub(tmp_path, monkeypatch, files):
    old = {**files, "config.json": json.dumps({**f.CONFIG, "rope_theta": 99.0}).encode()}
    repositories = {
        "someone/tiny": Repository({OLD: old, NEW: files}, {"main": NEW, "v1": OLD}),
        "tiny": Repository({NEW: files}, {"main": NEW}),
        "someone/secret": Repository({NEW: files}, {"main": NEW}, token="hf_right"),
        "someone/gated": Repository({NEW: files}, {"main": NEW}, is_gated=True),
    }
    with serving(repositories) as hub:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield hub
        huggingface_hub.close_session()


def refusal(*arguments) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_source(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_all(model: str, **options) -> dict[str, np.ndarray]:
    with open_checkpoint(model, **options) as checkpoint:
        return {name: np.array(checkpoint.weights.get(name)) for name in checkpoint.weights.names()}


def test_shards_are_fetched_once_and_read_as_one(hub):
    for _ in range(2):
        tensors = read_all("someone/tiny")
        assert tensors.keys() == f.TENSORS.keys()
        assert all(np.array_equal(tensors[name], f.TENSORS[name]) for name in tensors)
    fetched = hub.downloads()
    assert len(fetched) == len(set(fetched))
    assert {"config.json", "tokenizer.json", SHARD.format(1), SHARD.format(2)} <= set(fetched)
    assert not {"pytorch_model.bin", "README.md", "model.safetensors", "consolidated.safetensors"} & set(fetched)


def test_each_file_has_its_own_progress_up_to_its_last_byte(hub, files):
    heard = []
    resolve_source("someone/tiny", None, lambda *told: heard.append(told))
    shards = [SHARD.format(1), SHARD.format(2)]
    for name in (*shards, "tokenizer.json"):
        told = [(done, total) for what, done, total in heard if what == name]
        assert told[-1] == (len(files[name]), len(files[name])), name
        assert told == sorted(told)


def test_nothing_is_drawn(hub, capfd):
    resolve_source("someone/tiny", None, lambda *told: None)
    assert capfd.readouterr() == ("", "")


def test_a_revision_is_resolved_once_and_names_one_snapshot(hub, monkeypatch):
    """The branch moves between the listing and the files; still all are of the commit that was listed."""
    from huggingface_hub import hf_hub_download

    def moving(*arguments, **options):
        hub.repositories["someone/tiny"].branches["main"] = OLD
        return hf_hub_download(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", moving)
    folder = resolve_source("someone/tiny")
    assert folder.name == NEW and json.loads((folder / "config.json").read_text()) == f.CONFIG
    assert sum("/revision/" in asked or asked.endswith("someone/tiny") for asked in hub.asked) == 1
    assert not any("/resolve/main" in asked for asked in hub.asked)


def test_an_older_revision_is_another_snapshot(hub):
    with open_checkpoint("someone/tiny", revision="v1") as old, open_checkpoint("someone/tiny") as new:
        assert (old.config.rope.theta, new.config.rope.theta) == (99.0, 10_000.0)
    assert resolve_source("someone/tiny", OLD).name == OLD


def test_a_name_without_an_owner_is_a_name(hub):
    assert read_all("tiny").keys() == f.TENSORS.keys()


def test_a_tokenizer_is_had_without_weights(hub):
    assert open_tokenizer("someone/tiny").encode("ab") == [97, 98]
    assert not any(name.endswith(".safetensors") for name in hub.downloads())
    assert resolve_source("someone/tiny", None, None, TOKENIZER_FILES).name == NEW


def test_what_the_hub_refuses_is_told_in_one_line(hub):
    assert refusal("someone/none") == "someone/none: is not on the hub, or not for this token (HF_TOKEN)"
    assert refusal("someone/secret").endswith("not for this token (HF_TOKEN)")
    assert refusal("someone/gated") == "someone/gated: is gated on the hub; accept its terms there and set HF_TOKEN"
    assert refusal("someone/tiny", "v9") == "someone/tiny: has no revision 'v9' on the hub"
    assert refusal("smollm2-153m").endswith("; did you mean 'smollm2-135m'?")


def test_a_hub_that_fails_is_told_in_one_line_and_what_is_cached_is_used(hub):
    whole = resolve_source("someone/tiny")
    hub.repositories.clear()
    assert resolve_source("someone/tiny") == whole
    assert "is not on the hub" in refusal("tiny")


PROGRAM = """
import sys
from headrace.load.checkpoint import open_checkpoint
with open_checkpoint("someone/secret") as checkpoint:
    print(len(checkpoint.weights.names()))
"""


def test_the_hubs_variables_say_where_who_and_whether_at_all(hub, tmp_path):
    def run(**variables: str) -> tuple[str, str]:
        known = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**known, **variables}, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip(), done.stderr.strip().splitlines()[-1:] and done.stderr.strip().splitlines()[-1]

    assert "is not on the hub, or not for this token" in run()[1]
    assert run(HF_TOKEN="hf_right")[0] == "3"
    assert (tmp_path / "home" / "hub" / "models--someone--secret" / "snapshots" / NEW / "config.json").exists()
    num_asked = len(hub.asked)
    assert run(HF_HUB_OFFLINE="1")[0] == "3" and len(hub.asked) == num_asked
    elsewhere = run(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "other"))[1]
    assert "must not be (HF_HUB_OFFLINE)" in elsewhere and len(hub.asked) == num_asked
