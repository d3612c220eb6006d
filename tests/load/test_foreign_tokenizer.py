"""A checkpoint with another model's tokenizer."""

from __future__ import annotations

import json

import pytest
from tests.engine import tiny, toys
from tokenizers import AddedToken

from headrace.engine.build import build_engine
from headrace.words.config import engine_config


def folder_of_tokenizer(folder, num_more: int):
    """The toy's tokenizer with more tokens than the model knows, the last of which ends a text."""
    backend = toys.bytewise().backend
    backend.add_tokens([AddedToken(f"<more{i}>", special=True) for i in range(num_more)])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": f"<more{num_more - 1}>"}))
    return backend.token_to_id(f"<more{num_more - 1}>")


@pytest.mark.parametrize(("num_more", "is_known"), [(1, True), (200, False)])
def test_an_end_that_logits_cannot_have_ends_nothing(tmp_path, num_more, is_known):
    end = folder_of_tokenizer(tmp_path / "tokenizer", num_more)
    assert (end < tiny.VOCAB) is is_known
    asked = engine_config(
        model=str(tiny.write(tmp_path / "model")),
        tokenizer=str(tmp_path / "tokenizer"),
        backend="reference",
        num_gpu_blocks_override=8,
    )
    engine = build_engine(asked)
    try:
        assert engine.model.eos_token_ids == ((2, 3, end) if is_known else (2, 3))
        assert engine.resolved.scheduler.eos_token_ids == frozenset(engine.model.eos_token_ids)
    finally:
        engine.close()
