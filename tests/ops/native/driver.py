"""The driver of the models' tests over the native ops."""

import random

from tests.models.driver import BLOCK, DictSource, Driver

from headrace.comm import SoloComm
from headrace.models.registry import family

MAX_TOKENS = 80


class NativeDriver(Driver):
    """Each op by itself or the whole forward at once."""

    def __init__(self, config, arrays, ops, is_lowered: bool) -> None:
        self.ops = ops
        self.model = family(config.architecture).build(config, DictSource(arrays), ops, SoloComm(), 64)
        specs = self.model.cache_specs()
        self.caches = [ops.kv_cache(64, BLOCK, spec.num_heads, spec.head_dim) for spec in specs]
        for cache in self.caches:
            cache.fill(0xFF)
        if is_lowered:
            self.model = ops.compile(self.model, self.caches, MAX_TOKENS, MAX_TOKENS)
        self._free = random.Random(7).sample(range(1, 64), 63)
        self.blocks, self.tokens = {}, {}
