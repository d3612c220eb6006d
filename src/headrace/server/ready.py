"""What is printed when the server is ready: where it is, how to ask it, and how its memory is used."""

from __future__ import annotations

from headrace.engine.build import Engine
from headrace.server.settings import Settings

MIB = 1 << 20


def ready_text(engine: Engine, settings: Settings, port: int, weight_bytes: int | None, took_s: float) -> str:
    from headrace.server import page

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{'127.0.0.1' if settings.host in ('0.0.0.0', '::') else host}:{port}"
    key = ' -H "Authorization: Bearer $HEADRACE_API_KEY"' if settings.api_keys else ""
    body = f'{{"model": "{settings.model_name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    lines = [
        f"headrace is ready: {settings.model_name}, after {took_s:.1f} s",
        f"  API      {url}/v1",
        f"  docs     {url}/docs",
        *([f"  page     {url}/"] if page.FILES else []),
        f"  memory   {memory_plan(engine, weight_bytes)}",
        f"  try      curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'",
    ]
    return "\n".join(lines)


def memory_plan(engine: Engine, weight_bytes: int | None) -> str:
    """Weights as they were read, the cache's blocks, and how many of the longest requests it holds."""
    layout, limits, dtype = engine.layout, engine.resolved.scheduler, engine.resolved.kv_cache_dtype
    at_once = layout.capacity_tokens / limits.max_model_len
    weights = f"weights {weight_bytes / MIB:,.0f} MiB, " if weight_bytes else ""
    return (
        f"{weights}KV cache {layout.num_bytes / MIB:,.0f} MiB = {layout.num_blocks - 1:,} blocks of "
        f"{layout.block_size} tokens in {dtype}: {at_once:.1f} requests of the full {limits.max_model_len:,} tokens at "
        f"once, {limits.max_num_seqs} sequences at most"
    )
