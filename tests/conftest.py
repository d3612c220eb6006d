"""What all tests share: interrupts that interrupt, one thread per worker, no network for the oracles, repeatable
fuzzing, the shared data."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell runs beside itself
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HEADRACE_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("searching", parent=settings.get_profile("repeatable"), derandomize=False, print_blob=True)
settings.load_profile("searching" if os.environ.get("HEADRACE_FUZZ_EVENTS") else "repeatable")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data that lies beside a checkout; a test that needs it is skipped without it."""
    folder = os.environ.get("HEADRACE_SHARED_DATA")
    if not folder:
        pytest.skip("HEADRACE_SHARED_DATA names no folder of reference data")
    path = Path(folder)
    assert path.is_dir(), f"HEADRACE_SHARED_DATA is {folder}, which is no folder"
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needing_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not needing_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
