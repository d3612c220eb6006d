"""bfloat16 in numpy: the upper half of a float32, held as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]

QUIET = np.uint32(0x0040)


def to_bfloat16(x: NDArray[Any]) -> Words:
    """Rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, (bits >> np.uint32(16)) | QUIET, rounded).astype(np.uint16)


def to_float32(words: Words) -> Floats:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def as_dtype(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """float32, float16 or bfloat16 held as uint16 → an array as `dtype` is held; itself if it is one already."""
    if dtype == "bfloat16":
        return array if array.dtype == np.uint16 else to_bfloat16(array.astype(np.float32))
    return to_float32(array) if array.dtype == np.uint16 else np.asarray(array, np.float32)
