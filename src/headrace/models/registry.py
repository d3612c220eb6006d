"""Which family a checkpoint belongs to, by the architecture that its config names."""

from __future__ import annotations

from headrace.models.base import Model
from headrace.models.llama import Llama
from headrace.words.errors import ModelError, nearest

FAMILIES: dict[str, type[Model]] = {
    "LlamaForCausalLM": Llama,
}


def family(architecture: str) -> type[Model]:
    """The model class; an unknown architecture is a ModelError that names the known ones."""
    if architecture not in FAMILIES:
        hint = nearest(architecture, FAMILIES)
        raise ModelError(
            "config.json", f"the architecture {architecture!r} is not built{hint}; known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
