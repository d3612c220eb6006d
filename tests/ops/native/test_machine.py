"""What kernels run on: an instruction set and threads that are there, or one line that says what is not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headrace import _native
from headrace.ops.cpu import CpuOps
from headrace.ops.cpu.machine import MAX_HEAD_DIM, MAX_VOCAB, check_vocabulary, make_machine
from headrace.words.errors import ConfigError, ModelError

THREADS = """
from headrace.ops.cpu.machine import make_machine
from headrace.words.errors import ConfigError
try:
    make_machine(64, None)
except ConfigError as error:
    print(error)
print("it lives", make_machine(1, None).num_threads)
"""
LIMITS = "ulimit -s 131072; ulimit -v 3500000; exec \"$@\""
"""Room for what 64 threads keep, but not for as many stacks."""


def test_threads_that_cannot_be_started_are_told_and_end_no_program():
    command = ["bash", "-c", LIMITS, "bash", sys.executable, "-c", THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused, alive = done.stdout.splitlines()
    assert refused.startswith("num_threads: 64 threads cannot be started here (") and refused.endswith("; lower it")
    assert alive == "it lives 1"


@pytest.mark.parametrize("name", ["z80", "AVX2", "avx2 ", "a\nb"])
def test_an_instruction_set_that_is_not_here_is_refused_by_the_variables_name(name, monkeypatch):
    monkeypatch.setenv("HEADRACE_ISA", name)
    with pytest.raises(ConfigError, match=r"^HEADRACE_ISA: this machine runs portable.*; leave it out$") as error:
        CpuOps("float32", 1)
    assert repr(name) in str(error.value) and "\n" not in str(error.value)


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("HEADRACE_ISA", "")
    assert make_machine(1, None).isa == _native.isas()[-1]


def test_heads_as_wide_as_allowed_have_a_cache_and_wider_ones_are_refused():
    ops = CpuOps("float32", 1)
    assert ops.kv_cache(2, 1, 1, MAX_HEAD_DIM).nbytes > 0
    with pytest.raises(ModelError, match=f"has heads of {MAX_HEAD_DIM + 1} dimensions; {MAX_HEAD_DIM} can be attended"):
        ops.kv_cache(2, 1, 1, MAX_HEAD_DIM + 1)


def test_a_vocabulary_as_large_as_allowed_is_drawn_from_and_a_larger_one_is_refused():
    check_vocabulary(MAX_VOCAB)
    with pytest.raises(ModelError, match=f"has a vocabulary of {MAX_VOCAB + 1} tokens; {MAX_VOCAB} can be drawn from"):
        check_vocabulary(MAX_VOCAB + 1)


@pytest.mark.parametrize(("num_tokens", "is_taken"), [(MAX_VOCAB, True), (MAX_VOCAB + 1, False)])
def test_the_kernels_have_that_limit_too(num_tokens, is_taken):
    program = _native.Program(make_machine(1, None), 1)
    program.begin_head(1)
    logits = _native.Place(program.add_buffer(num_tokens, False), 0, num_tokens)
    if is_taken:
        program.end_head(logits)
        assert np.array(program.result(logits)).shape == (1, num_tokens)
    else:
        with pytest.raises(ValueError, match="of 262,144 tokens at most"):
            program.end_head(logits)
