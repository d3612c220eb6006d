"""The fingerprint of a checkpoint: of what it is, not of where it lies."""

from __future__ import annotations

import numpy as np
import pytest
from tests.load import folder as f

from headrace.load.checkpoint import open_checkpoint


def fingerprint(folder, **files) -> str:
    with open_checkpoint(str(f.write(folder, **files))) as checkpoint:
        assert checkpoint.fingerprint == checkpoint.fingerprint and len(checkpoint.fingerprint) == 32
        return checkpoint.fingerprint


def with_tensors(**tensors) -> dict[str, bytes]:
    return {"model__safetensors": f.safetensors({**f.TENSORS, **tensors})}


CHANGES = {
    "another configuration": {"config__json": {**f.CONFIG, "rope_theta": 5e5}},
    "another first value": with_tensors(extra=np.array([9, *[0] * 4095], np.float32)),
    "another last value": with_tensors(extra=np.array([*[0] * 4095, 9], np.float32)),
    "another value half way": with_tensors(extra=np.array([*[0] * 2048, 9, *[0] * 2047], np.float32)),
    "another type": with_tensors(extra=np.zeros(4096, np.float16)),
    "another shape": with_tensors(extra=np.zeros((64, 64), np.float32)),
    "another name": with_tensors(other=np.zeros(4096, np.float32)),
    "an empty tensor more": with_tensors(extra=np.zeros(4096, np.float32), none=np.zeros((0, 4), np.float32)),
}


@pytest.fixture
def plain(tmp_path) -> str:
    return fingerprint(tmp_path / "plain", **with_tensors(extra=np.zeros(4096, np.float32)))


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_has_another_fingerprint(tmp_path, plain, change):
    extra = with_tensors(extra=np.zeros(4096, np.float32))
    assert fingerprint(tmp_path / "changed", **{**extra, **CHANGES[change]}) != plain


def test_the_same_model_elsewhere_has_the_same_fingerprint(tmp_path, plain):
    assert fingerprint(tmp_path / "copy", **with_tensors(extra=np.zeros(4096, np.float32))) == plain


def test_shards_of_the_same_tensors_have_the_same_fingerprint(tmp_path, plain):
    tensors = {**f.TENSORS, "extra": np.zeros(4096, np.float32)}
    shards = {f"{i}.safetensors": f.safetensors({name: array}) for i, (name, array) in enumerate(tensors.items())}
    mapping = {name: f"{i}.safetensors" for i, name in enumerate(tensors)}
    index = {"model__safetensors": None, "model__safetensors__index__json": {"weight_map": mapping}}
    assert fingerprint(tmp_path / "shards", **index, **shards) == plain


def test_the_default_model_has_one_fingerprint_by_path_and_by_alias(default_model_path):
    with open_checkpoint(str(default_model_path)) as by_path, open_checkpoint("smollm2-135m") as by_alias:
        assert by_path.fingerprint == by_alias.fingerprint
