"""Memory that is not there is an error of the caller's thread, wherever it was asked for."""

import os
import resource
import subprocess
import sys

import pytest

BEGIN = """
import resource
from tests.ops.native.built import use_build
use_build()
import numpy as np
from headrace import _native
MIB = 1 << 20

def allow(num_bytes):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, resource.RLIM_INFINITY))
"""
ROWS = """
machine = _native.Machine(8)
wide = np.ones((1, 4 * MIB), np.float32)
allow(200 * MIB)
machine.pack_rounded([wide], 8)
"""
"""The matrix takes 136 MiB, a row for each of eight threads another 136."""
THREADS = """
allow(300 * MIB)
_native.Machine(16)
"""
"""Rooms for 16 threads take 192 MiB, their stacks 120."""


def with_large_stacks() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer ends a process that finds no memory")
@pytest.mark.parametrize(("code", "error"), [(ROWS, "MemoryError"), (THREADS, "RuntimeError")], ids=["rows", "threads"])
def test_too_little_memory_for_all_threads_is_an_error_and_no_end_of_the_process(code, error):
    command = [sys.executable, "-c", BEGIN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=with_large_stacks)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(error), done.stderr
