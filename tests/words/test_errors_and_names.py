"""Errors survive pickling and keep their status; the public names are those that are promised."""

import ast
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.words import envs, errors
from headrace.words.errors import ConfigError, HeadraceError, ModelError, PromptTooLongError, RequestError, nearest
from headrace.words.log import get_logger


def test_the_tree_of_errors_has_one_root_and_each_its_status():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadraceError)]
    tree = {kind.__name__: kind.http_status for kind in kinds}
    assert tree == {
        "HeadraceError": 500,
        "RequestError": 400,
        "PromptTooLongError": 400,
        "QueueFullError": 503,
        "ConfigError": 400,
        "ModelError": 500,
        "UnsupportedError": 501,
        "EngineError": 500,
        "EngineDeadError": 503,
    }
    assert issubclass(RequestError, ValueError) and issubclass(ConfigError, ValueError)


@pytest.mark.parametrize("error", [RequestError("n", "too many"), PromptTooLongError("prompt", "too long")])
def test_a_request_error_survives_the_way_to_another_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and (copy.parameter, copy.message) == (error.parameter, error.message)
    assert str(copy) == str(error) == f"{error.parameter}: {error.message}"


def test_a_model_error_names_file_and_cause():
    error = ModelError("config.json", "is damaged")
    assert (str(error), error.file, error.cause) == ("config.json: is damaged", "config.json", "is damaged")


def test_the_nearest_name_is_offered_only_when_one_is_near():
    assert nearest("temprature", ["temperature", "top_p"]) == "; did you mean 'temperature'?"
    assert nearest("zzz", ["temperature"]) == ""


def test_a_variable_outside_the_table_is_an_error(monkeypatch):
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "debug")
    assert envs.get("HEADRACE_LOG_LEVEL") == "debug" and envs.get("HEADRACE_CHECK_INVARIANTS") is not None
    with pytest.raises(KeyError):
        envs.get("HEADRACE_UNHEARD_OF")


def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    for name in ("HEADRACE_LOG_LEVEL", "HEADRACE_NUM_THREADS"):
        monkeypatch.setenv(name, "")
    assert (envs.log_level(), envs.whole_number("HEADRACE_NUM_THREADS", 1)) == ("warning", None)


@pytest.mark.parametrize("text", ["two", "-1", "1.0", " 1", "²", "٣", "0x1", "9" * 5_000])
def test_what_is_no_whole_number_is_refused_by_the_variables_name(monkeypatch, text):
    monkeypatch.setenv("HEADRACE_CHECK_INVARIANTS", text)
    with pytest.raises(ConfigError, match="^HEADRACE_CHECK_INVARIANTS: must be a whole number, got ") as error:
        envs.whole_number("HEADRACE_CHECK_INVARIANTS", 0)
    assert len(str(error.value)) < 200


def test_a_number_may_be_the_least_that_is_allowed_and_no_less(monkeypatch):
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "0")
    assert envs.whole_number("HEADRACE_NUM_THREADS", 0) == 0
    with pytest.raises(ConfigError, match="must be a positive whole number, got '0'"):
        envs.whole_number("HEADRACE_NUM_THREADS", 1)


def test_an_unknown_log_level_stops_no_import_and_is_told(monkeypatch, caplog):
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "loud")
    root = logging.getLogger("headrace")
    monkeypatch.setattr(root, "level", logging.NOTSET)
    get_logger("headrace.somewhere")
    assert root.level == logging.WARNING
    assert "HEADRACE_LOG_LEVEL: must be one of debug, info, warning, error, got 'loud'; warning is used" in caplog.text
    with pytest.raises(ConfigError, match="HEADRACE_LOG_LEVEL: must be one of"):
        envs.log_level()


def test_the_public_names_are_there_and_no_others():
    assert headrace.__all__ == [
        "AsyncLLM", "CompletionOutput", "ConfigError", "EmbeddingOutput", "EngineConfig", "EngineDeadError",
        "EngineError", "FinishReason", "HeadraceError", "LLM", "LLMEngine", "ModelError", "PoolingParams",
        "QueueFullError", "RequestError", "RequestOutput", "SamplingParams", "UnsupportedError", "__version__",
    ]  # fmt: skip
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None and name in dir(headrace)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = headrace.Nothing


def test_type_checkers_see_the_same_names():
    stub = ast.parse(Path(headrace.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names - {None} | {"__version__"} == set(headrace.__all__)


def test_parameters_and_engines_can_be_named_without_torch():
    code = "from headrace import *; import headrace.engine.build, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
