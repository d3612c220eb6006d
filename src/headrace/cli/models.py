"""`headrace models`: what is on this machine, fetching more, and what a model is and takes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.model import set_log_level
from headrace.cli.options import Options, engine_keywords, engine_options, takes
from headrace.cli.report import plural
from headrace.engine.progress import terminal_progress
from headrace.words.config import DEFAULT_MODEL, engine_config
from headrace.words.errors import ModelError

if TYPE_CHECKING:
    from headrace.cli.plan import MemoryPlan
    from headrace.load.checkpoint import Checkpoint

app = typer.Typer(no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Folder, GGUF file, Hugging Face name or alias.")]
RevisionOption = Annotated[str | None, typer.Option("--revision", help="Revision on the Hugging Face hub.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MAX_CAUSE_CHARS = 90


@app.callback()
def models() -> None:
    """List, fetch and explain models."""


@app.command("list")
def list_models(as_json: JsonOption = False) -> int:
    """List the models that are on this machine: the embedded ones, and those in Hugging Face's cache."""
    found = [*embedded(), *cached()]
    if as_json:
        print(json.dumps(found))
    else:
        print("\n".join(row(each) for each in found))
    return 0


@app.command()
def pull(name: NameArgument = DEFAULT_MODEL, revision: RevisionOption = None) -> int:
    """Fetch a model, or what is missing of it, and print where it lies."""
    from headrace.load.hub import resolve_source

    with terminal_progress() as progress:
        print(resolve_source(name, revision, progress))
    return 0


@app.command()
@takes(engine=engine_options)
def show(name: NameArgument = DEFAULT_MODEL, as_json: JsonOption = False, *, engine: Options) -> int:
    """Print what a model on this machine is, and what it would take of the memory with these options.

    Nothing is fetched, and no weight is read.
    """
    from headrace.cli.plan import plan_memory
    from headrace.load.checkpoint import open_checkpoint
    from headrace.load.hub import find_here

    set_log_level("error")
    asked = engine_config(**engine_keywords(name, engine))
    with open_checkpoint(str(find_here(name, asked.revision)), tokenizer=asked.tokenizer) as checkpoint:
        facts, plan = facts_of(checkpoint), plan_memory(asked, checkpoint)
    if as_json:
        print(json.dumps({"model": name, **facts, "memory": {**dataclasses.asdict(plan), "total": plan.total_bytes}}))
    else:
        print(f"{name}\n" + "\n".join([*lines_of(facts), *plan_lines(plan)]))
    return 1 if plan.problem else 0


def embedded() -> list[dict[str, Any]]:
    from headrace.load.default_model import EMBEDDED, cache_folder

    return [
        {
            "model": alias,
            "family": "LlamaForCausalLM",
            "bytes": model.file_bytes,
            "is_here": (cache_folder() / Path(model.member).name).exists(),
            "problem": None,
        }
        for alias, model in EMBEDDED.items()
    ]


def cached() -> list[dict[str, Any]]:
    """Those of the hub, with why they cannot be used where they cannot."""
    from headrace.load.hub_snapshot import cached_models

    found = []
    for model in cached_models():
        family, problem = (None, "has no config.json") if model.folder is None else family_of(model.folder)
        found.append(
            {"model": model.name, "family": family, "bytes": model.num_bytes, "is_here": True, "problem": problem}
        )
    return found


def family_of(folder: Path) -> tuple[str | None, str | None]:
    """The architecture that a folder's config.json names, and what speaks against it."""
    from headrace.load.config import model_config
    from headrace.load.files import read_json

    raw: dict[str, Any] = {}
    try:
        raw = read_json(folder / "config.json")
        return model_config(raw).architecture, None
    except ModelError as error:
        named = raw.get("architectures")
        return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None, error.cause


def row(found: dict[str, Any]) -> str:
    state = "" if found["is_here"] else "  not fetched yet"
    if found["problem"]:
        state = f"  cannot be used: {found['problem'][:MAX_CAUSE_CHARS]}"
    return f"{found['model']:<44} {found['family'] or '?':<24} {size(found['bytes']):>9}{state}"


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    from headrace.engine.build import ends_of

    config, weights, names = checkpoint.config, checkpoint.weights, checkpoint.weights.names()
    return {
        "family": config.architecture,
        "file_bytes": weights.nbytes,
        "parameters": sum(math.prod(weights.shape(name)) for name in names),
        "stored_as": dict(Counter(weights.dtype(name) for name in names).most_common()),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "context": config.max_position_embeddings,
        "rope": config.rope.kind,
        "eos_token_ids": list(ends_of(config, checkpoint.tokenizer)),
        "has_chat_template": checkpoint.chat_template is not None,
    }


def lines_of(facts: dict[str, Any]) -> list[str]:
    stored = ", ".join(f"{count} {dtype}" for dtype, count in facts["stored_as"].items())
    heads = f"{facts['heads']} heads of {facts['head_dim']} ({facts['kv_heads']} of keys and values)"
    return [
        f"  family      {facts['family']}",
        f"  size        {facts['parameters'] / 1e6:,.1f} M parameters, {size(facts['file_bytes'])}; tensors: {stored}",
        f"  shape       {facts['layers']} layers, {facts['hidden_size']} wide, {heads}",
        f"  text        {facts['vocab_size']:,} tokens known, {facts['context']:,} in context, rope {facts['rope']}",
        f"  chat        {'has a template' if facts['has_chat_template'] else 'no template'}, "
        f"ends with {', '.join(map(str, facts['eos_token_ids'])) or 'nothing'}",
    ]


def plan_lines(plan: MemoryPlan) -> list[str]:
    lines = [
        f"  runs        {plan.backend}, {plan.dtype}, {plural(plan.num_threads, 'thread')}, "
        f"up to {plural(plan.max_num_seqs, 'sequence')} of {plan.max_model_len:,} tokens",
        f"  memory      weights {size(plan.weight_bytes)} + a step {size(plan.step_bytes)} + cache "
        f"{size(plan.cache_bytes)} ({plan.cache_tokens:,} tokens in {plan.kv_cache_dtype}) = "
        f"{size(plan.total_bytes)} of {size(plan.available_bytes)} available",
    ]
    return lines + ([f"  problem     {plan.problem}"] if plan.problem else [])


def size(num_bytes: int) -> str:
    value, units = float(num_bytes), iter(("B", "KB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
