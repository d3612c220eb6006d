from typing import Any

from headrace.engine.host import AsyncLLM as AsyncLLM
from headrace.engine.llm_engine import LLMEngine as LLMEngine
from headrace.llm import LLM as LLM
from headrace.words.config import EngineConfig as EngineConfig
from headrace.words.errors import ConfigError as ConfigError
from headrace.words.errors import EngineDeadError as EngineDeadError
from headrace.words.errors import EngineError as EngineError
from headrace.words.errors import HeadraceError as HeadraceError
from headrace.words.errors import ModelError as ModelError
from headrace.words.errors import QueueFullError as QueueFullError
from headrace.words.errors import RequestError as RequestError
from headrace.words.errors import UnsupportedError as UnsupportedError
from headrace.words.outputs import CompletionOutput as CompletionOutput
from headrace.words.outputs import EmbeddingOutput as EmbeddingOutput
from headrace.words.outputs import FinishReason as FinishReason
from headrace.words.outputs import RequestOutput as RequestOutput
from headrace.words.params import PoolingParams as PoolingParams
from headrace.words.params import SamplingParams as SamplingParams

__version__: str
__all__: list[str]
_native: Any
