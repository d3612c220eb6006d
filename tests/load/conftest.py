from pathlib import Path

import pytest

from headrace.load.hub import resolve_source


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The embedded default model's GGUF, fetched once and kept in the cache folder."""
    return resolve_source("smollm2-135m")
