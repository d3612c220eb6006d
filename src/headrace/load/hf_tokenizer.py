"""The tokenizer of a folder in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from headrace.load.files import MAX_TEXT_BYTES, read_json, read_json_if_there, read_text
from headrace.load.tokenizer import Tokenizer
from headrace.words.errors import ModelError

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 1 << 28
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def folder_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json with what tokenizer_config.json and the chat template's file say. Raises ModelError."""
    backend = read_backend(folder)
    settings = read_json_if_there(folder / "special_tokens_map.json")
    settings |= read_json_if_there(folder / "tokenizer_config.json")
    named = {name: text for name in NAMED if (text := token_text(settings.get(name))) is not None}
    mark_special(backend, list(named.values()))
    ids = {name: backend.token_to_id(text) for name, text in named.items()}
    eos = ids.get("eos_token")
    decoders = decoders_of(backend)
    has_template = backend.post_processor is not None
    return Tokenizer(
        backend,
        is_bytewise="ByteLevel" in decoders,
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=() if eos is None else (eos,),
        adds_bos=not has_template and settings.get("add_bos_token") is True,
        adds_eos=not has_template and settings.get("add_eos_token") is True,
        chat_template=chat_template(folder, settings),
        continues=decoders.get("WordPiece", {}).get("prefix"),
    )


def read_backend(folder: Path) -> Backend:
    path = folder / TOKENIZER
    if not path.exists():
        raise ModelError(TOKENIZER, "is missing from the model's folder; save a fast tokenizer there, or name another")
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ModelError(TOKENIZER, f"has more than {MAX_TOKENIZER_BYTES} bytes; no tokenizer is so long")
    try:
        return Backend.from_file(str(path))
    except Exception as error:
        if path.stat().st_size <= MAX_TEXT_BYTES:
            read_json(path)
        cause = " ".join(str(error).split())[:120]
        raise ModelError(TOKENIZER, f"cannot be read as a tokenizer: {cause}") from None


def token_text(entry: Any) -> str | None:
    """Of a special token that is given as text or as an object."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) and text else None


def mark_special(backend: Backend, texts: list[str]) -> None:
    """Tokens that the settings name are special, even where tokenizer.json does not say so."""
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    new = [text for text in texts if text not in known and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in new])


def decoders_of(backend: Backend) -> dict[str, Mapping[str, Any]]:
    """The decoder, or those that it is a sequence of, by their types."""
    if backend.decoder is None:
        return {}
    return {state.get("type", ""): state for state in states_in(json.loads(backend.decoder.__getstate__()))}


def states_in(state: Any) -> Iterator[Mapping[str, Any]]:
    yield state
    for inner in state.get("decoders", ()):
        yield from states_in(inner)


def chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or the settings' template (the one named default of several)."""
    if (path := folder / "chat_template.jinja").exists():
        return read_text(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None
