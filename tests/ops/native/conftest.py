"""The tests of the native kernels run where there are kernels."""

from __future__ import annotations

import pytest
from tests.ops.native.built import use_build

HAS_KERNELS = use_build()
collect_ignore_glob = [] if HAS_KERNELS else ["test_*.py"]


def pytest_report_header() -> str:
    return "native kernels: " + ("built" if HAS_KERNELS else "not built, their tests are left out")


@pytest.fixture(scope="session")
def fastest():
    """A machine of two threads with the best instruction set."""
    from headrace import _native

    return _native.Machine(2)
