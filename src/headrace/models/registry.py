"""Which family a checkpoint belongs to, by the architecture that its config names."""

from __future__ import annotations

from headrace.models.base import Model
from headrace.models.gemma2 import Gemma2
from headrace.models.gemma3 import Gemma3
from headrace.models.gpt2 import GPT2
from headrace.models.gpt_neox import GPTNeoX
from headrace.models.granite import Granite
from headrace.models.llama import Llama
from headrace.models.mistral import Mistral
from headrace.models.mixtral import Mixtral
from headrace.models.olmo2 import Olmo2
from headrace.models.phi3 import Phi3
from headrace.models.qwen2 import Qwen2
from headrace.models.qwen3 import Qwen3
from headrace.models.qwen3_moe import Qwen3Moe
from headrace.models.smollm3 import SmolLM3
from headrace.words.errors import ModelError, brief, nearest

FAMILIES: dict[str, type[Model]] = {
    "Gemma2ForCausalLM": Gemma2,
    "Gemma3ForCausalLM": Gemma3,
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": GPTNeoX,
    "GraniteForCausalLM": Granite,
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Mistral,
    "MixtralForCausalLM": Mixtral,
    "Olmo2ForCausalLM": Olmo2,
    "Phi3ForCausalLM": Phi3,
    "Qwen2ForCausalLM": Qwen2,
    "Qwen3ForCausalLM": Qwen3,
    "Qwen3MoeForCausalLM": Qwen3Moe,
    "SmolLM3ForCausalLM": SmolLM3,
}


def family(architecture: str, file: str = "config.json") -> type[Model]:
    """The model class; an unknown architecture is a ModelError that names the known ones."""
    if architecture not in FAMILIES:
        hint = nearest(architecture, FAMILIES)
        raise ModelError(
            file, f"the architecture {brief(architecture)} is not built{hint}; known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
