"""The native kernels as an installed package has them, or as a hand-made build left them in build/native."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import headrace

BUILD = Path(__file__).resolve().parents[3] / "build" / "native"
if importlib.util.find_spec("headrace._native") is None and BUILD.is_dir():
    headrace.__path__.append(str(BUILD))
HAS_KERNELS = importlib.util.find_spec("headrace._native") is not None
collect_ignore_glob = [] if HAS_KERNELS else ["test_*.py"]


def pytest_report_header() -> str:
    return "native kernels: " + ("built" if HAS_KERNELS else "not built, their tests are left out")


@pytest.fixture(scope="session")
def fastest():
    """A machine of two threads with the best instruction set."""
    from headrace import _native

    return _native.Machine(2)
