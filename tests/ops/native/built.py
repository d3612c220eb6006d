"""The native kernels that are tested: those installed, or those in the folder that HEADRACE_NATIVE_BUILD names."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def use_build() -> bool:
    """Whether there are kernels. An editable install finds its own before any path is looked at, so a build is loaded
    by its file."""
    folder = os.environ.get("HEADRACE_NATIVE_BUILD")
    if not folder:
        return importlib.util.find_spec("headrace._native") is not None
    file = next(Path(folder).glob("_native*.so"))
    spec = importlib.util.spec_from_file_location("headrace._native", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["headrace._native"] = module
    import headrace

    headrace._native = module
    return True
