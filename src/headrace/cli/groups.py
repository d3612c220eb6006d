"""The engine's flags of `headrace serve` in groups, as its help lists them."""

from __future__ import annotations

import inspect
import typing

from headrace.cli.options import engine_options

GROUPS: dict[str, str] = {
    "Model": "tokenizer revision dtype max_model_len generation_config chat_template",
    "Cache": "block_size kv_cache_dtype gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override "
    "enable_prefix_caching",
    "Queue": "queue_timeout_s request_timeout_s max_num_queued_requests max_num_queued_tokens",
    "Scheduling": "max_num_seqs max_num_batched_tokens scheduling_policy prefill_policy attempt_max_steps "
    "attempt_max_wait_s attempt_target_tokens preemption_policy victim_policy max_preemptions async_scheduling",
}
"""Those of the engine; what stands in none stays under Engine."""
SEED = "engine_seed"
"""`serve` has no other seed, and calls it --seed."""


def grouped_engine_options() -> list[inspect.Parameter]:
    """The engine's options, each under the heading of its group."""
    panels = {name: group for group, names in GROUPS.items() for name in names.split()}
    parameters = engine_options()
    for parameter in parameters:
        (info,) = typing.get_args(parameter.annotation)[1:]
        info.rich_help_panel = panels.get(parameter.name, info.rich_help_panel)
        info.hidden = info.hidden or parameter.name == SEED
    return parameters
