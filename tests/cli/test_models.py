"""`headrace models`: what is here, what is fetched, and what a model is and takes."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.engine import tiny
from tests.load.local_hub import Repository, serving

from headrace.cli.app import run
from headrace.cli.models import size
from headrace.engine.build import build_engine
from headrace.words.config import engine_config

COMMIT = "c" * 40


@pytest.fixture
def cli(capsys):
    """Runs a command line; gives (exit code, stdout, stderr)."""

    def call(*arguments: str):
        code = run(arguments)
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Empty caches of ours and of the hub's."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path


@pytest.fixture
def hub(caches, monkeypatch, folder):
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    odd = {**files, "config.json": json.dumps({**tiny.CONFIG, "architectures": ["OddForCausalLM"]}).encode()}
    repositories = {
        "someone/tiny": Repository({COMMIT: files}, {"main": COMMIT}),
        "someone/odd": Repository({COMMIT: odd}, {"main": COMMIT}),
    }
    with serving(repositories) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub
        huggingface_hub.close_session()


def test_what_was_fetched_is_listed_with_its_family_and_size(cli, hub, folder):
    code, out, _ = cli("models", "pull", "someone/tiny")
    assert code == 0 and (fetched := out.strip()).endswith(COMMIT)
    assert json.loads((Path(fetched) / "config.json").read_text())["model_type"] == "llama"
    assert cli("models", "pull", "someone/odd")[0] == 0
    code, out, _ = cli("models", "list", "--json")
    found = {model["model"]: model for model in json.loads(out)}
    assert code == 0 and not found["smollm2-135m"]["is_here"]
    assert found["someone/tiny"]["family"] == "LlamaForCausalLM" and found["someone/tiny"]["problem"] is None
    assert found["someone/tiny"]["bytes"] >= (folder / "model.safetensors").stat().st_size
    assert "OddForCausalLM" in found["someone/odd"]["problem"]
    lines = cli("models", "list")[1].splitlines()
    assert lines[0].endswith("not fetched yet") and "cannot be used: the architecture" in lines[1]


def test_a_model_is_shown_with_what_it_takes(cli, folder):
    code, out, _ = cli("models", "show", str(folder), "--backend", "reference", "--max-num-seqs", "3", "--json")
    shown = json.loads(out)
    count = sum(int(a) * int(b) for a, b in ((*shape, 1)[:2] for shape in tiny.shapes().values()))
    assert code == 0 and shown["family"] == "LlamaForCausalLM" and shown["parameters"] == count
    assert shown["file_bytes"] == 4 * count and shown["stored_as"] == {"F32": len(tiny.shapes())}
    assert shown["memory"]["weight_bytes"] == 4 * count and shown["memory"]["max_num_seqs"] == 3
    assert (shown["vocab_size"], shown["context"], shown["eos_token_ids"]) == (tiny.VOCAB, 128, [2, 3, 293])


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_seqs": 2, "max_model_len": 64}, {"kv_cache_memory_bytes": 40_000}, {"dtype": "bfloat16"},
     {"quantization": "int8"}, {"quantization": "int4", "dtype": "float32"},
     {"kv_cache_dtype": "int8", "kv_cache_memory_bytes": 40_000}],
    ids=str,
)
def test_the_plan_is_what_an_engine_decides(cli, folder, options):
    given = {"backend": "reference", "max_num_seqs": 8, **options}
    flags = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    plan = json.loads(cli("models", "show", str(folder), "--json", *flags)[1])["memory"]
    engine = build_engine(engine_config(model=str(folder), **given))
    try:
        assert plan["cache_tokens"] == engine.layout.capacity_tokens
        assert plan["cache_bytes"] == engine.layout.num_bytes > 0
        assert plan["max_model_len"] == engine.resolved.scheduler.max_model_len
        assert (plan["dtype"], plan["num_threads"]) == (engine.resolved.dtype, engine.resolved.num_threads)
        assert plan["kv_cache_dtype"] == engine.resolved.kv_cache_dtype == given.get("kv_cache_dtype", plan["dtype"])
    finally:
        engine.close()


def test_a_model_that_does_not_fit_is_shown_with_the_reason(cli, folder):
    code, out, _ = cli("models", "show", str(folder), "--backend", "reference", "--kv-cache-memory-bytes", "9")
    assert code == 1 and "LlamaForCausalLM" in out and "problem     kv_cache_memory_bytes: the smallest cache" in out


def test_nothing_is_fetched_to_be_shown(cli, hub):
    code, out, err = cli("models", "show", "someone/tiny")
    assert (code, out) == (1, "")
    assert err == "headrace: someone/tiny: is not on this machine yet; fetch it: headrace models pull someone/tiny\n"
    assert "headrace models pull smollm2-135m" in cli("models", "show")[2] and hub.asked == []
    cli("models", "pull", "someone/tiny")
    num_asked = len(hub.asked)
    code, out, _ = cli("models", "show", "someone/tiny", "--backend", "reference")
    assert code == 0 and out.startswith("someone/tiny\n  family      LlamaForCausalLM\n")
    assert len(hub.asked) == num_asked


def test_sizes_are_read_at_a_glance():
    assert [size(n) for n in (0, 999, 1000, 134_500_000, 10**15)] == ["0 B", "999 B", "1.0 KB", "134.5 MB", "1000.0 TB"]
