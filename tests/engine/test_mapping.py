"""A checkpoint's file is mapped while its weights are packed, and no longer."""

from pathlib import Path

import pytest
from tests.engine import tiny

from headrace import LLM

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux tells what a process has mapped")
def test_the_file_is_not_resident_beside_the_packed_weights(tmp_path):
    pytest.importorskip("headrace._native", reason="the reference backend keeps views of the file")
    folder = tiny.write(tmp_path)
    with LLM(str(folder), max_model_len=64, num_gpu_blocks_override=16, block_size=16):
        assert str(folder) not in MAPS.read_text()
