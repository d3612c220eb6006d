"""The GGUF reader against the gguf package, and against files that lie."""

from __future__ import annotations

import struct
import time
import tracemalloc

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType
from tests.load import gguf_bytes as g
from tests.load.gguf_bytes import Array, Entry, Tensor

from headrace.load.gguf import MAX_KEPT_BYTES, GGUFFile, Strings
from headrace.words.errors import ModelError

RAMP = np.arange(64, dtype=np.float32)


@pytest.fixture
def written(tmp_path):
    def write(data: bytes) -> GGUFFile:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return GGUFFile(path)

    return write


@pytest.fixture
def cause(written):
    """The message that a file is refused with: its name and the cause, on one short line."""

    def read(data: bytes) -> str:
        tracemalloc.start()
        try:
            with pytest.raises(ModelError) as caught:
                written(data)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        message = str(caught.value)
        assert message.startswith("model.gguf: ") and "\n" not in message and len(message) < 300
        assert peak_bytes < 200_000 + 16 * len(data)
        return message

    return read


@pytest.fixture(scope="module")
def oracle(default_model_path):
    return GGUFReader(default_model_path)


def test_the_default_models_header_is_read_in_less_than_half_a_second(default_model_path):
    started_s = time.perf_counter()
    metadata = GGUFFile(default_model_path).metadata
    assert time.perf_counter() - started_s < 0.5
    assert len(metadata["tokenizer.ggml.tokens"]) == 49_152


def test_the_default_models_metadata_equal_the_gguf_packages(default_model_path, oracle):
    ours = GGUFFile(default_model_path).metadata
    theirs = {name: field for name, field in oracle.fields.items() if not name.startswith("GGUF.")}
    assert {name: as_list(value) for name, value in ours.items()} == {
        name: contents(field) for name, field in theirs.items()
    }


def contents(field):
    """A field's value; its own method makes a view of each number, which takes seconds for a vocabulary."""
    if field.types[0] != GGUFValueType.ARRAY or field.types[1] == GGUFValueType.STRING:
        return field.contents()
    return np.concatenate([field.parts[i] for i in field.data]).tolist()


def as_list(value):
    return value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, Strings) else value


def test_the_default_models_tensors_lie_where_the_gguf_package_finds_them(default_model_path, oracle):
    ours = GGUFFile(default_model_path)
    theirs = oracle.tensors
    assert list(ours.tensors) == [tensor.name for tensor in theirs]
    for tensor in theirs:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist())) and info.quant.name == tensor.tensor_type.name
        assert np.array_equal(ours.raw(tensor.name), tensor.data.reshape(-1).view(np.uint8))


def test_every_type_of_value_is_read(written):
    scalars = {0: 200, 1: -5, 2: 60_000, 3: -6, 4: 2**32 - 1, 5: -7, 6: 0.5, 10: 2**64 - 1, 11: -8, 12: 0.1}
    entries = [Entry(f"scalar{kind}", kind, value) for kind, value in scalars.items()]
    entries += [Entry(f"array{kind}", g.ARRAY, Array(kind, [value, value])) for kind, value in scalars.items()]
    entries += [Entry("yes", g.BOOL, 1), Entry("text", g.STRING, "naïve"), Entry("none", g.ARRAY, Array(g.STRING, []))]
    entries += [Entry("texts", g.ARRAY, Array(g.STRING, ["", "a\n", "日本"])), Entry("nos", g.ARRAY, Array(7, [0, 1]))]
    entries += [Entry("nested", g.ARRAY, Array(g.ARRAY, [Array(g.INT32, [1]), Array(g.STRING, ["x"])]))]
    metadata = written(g.gguf(entries)).metadata
    for kind, value in scalars.items():
        assert metadata[f"scalar{kind}"] == value and as_list(metadata[f"array{kind}"]) == [value, value]
    assert metadata["yes"] is True and metadata["text"] == "naïve" and as_list(metadata["none"]) == []
    assert as_list(metadata["texts"]) == ["", "a\n", "日本"] and as_list(metadata["nos"]) == [False, True]
    assert "nested" not in metadata


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_tensors_are_found_at_any_alignment(written, version, alignment):
    entries = [Entry("general.alignment", g.UINT32, alignment)]
    tensors = [Tensor("first", [3], g.F32, RAMP[:3].tobytes()), Tensor("second", [4, 2], g.F32, RAMP[8:16].tobytes())]
    file = written(g.gguf(entries, tensors, alignment, version))
    assert np.array_equal(file.tensor("first"), RAMP[:3])
    assert np.array_equal(file.tensor("second"), RAMP[8:16].reshape(2, 4))


def test_a_tensor_outlives_the_file_that_it_is_a_view_of(written):
    file = written(g.gguf(tensors=[Tensor("t", [64], g.F32, RAMP.tobytes())]))
    tensor = file.tensor("t")
    file.close()
    file.close()
    assert np.array_equal(tensor, RAMP)


HUGE = 2**63
LIES = {
    "another format": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "nothing": (b"", "cannot be mapped"),
    "three bytes": (b"GGU", "is it truncated"),
    "version 1": (g.header(0, 0, version=1), "version 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "too many tensors": (g.header(HUGE, 0) + bytes(100), f"{HUGE} tensors"),
    "too many entries": (g.header(0, HUGE) + bytes(100), f"{HUGE} metadata entries"),
    "a key longer than the file": (g.header(0, 1) + struct.pack("<Q", 2**64 - 1) + bytes(64), "is it truncated"),
    "a string longer than the file": (
        g.header(0, 1) + g.text("k") + struct.pack("<IQ", g.STRING, HUGE) + bytes(64),
        "is it truncated",
    ),
    "a string within an array longer than the file": (
        g.header(0, 1) + g.text("k") + struct.pack("<IIQQ", g.ARRAY, g.STRING, 2, 2**64 - 9) + bytes(64),
        "longer than the file",
    ),
    "too many strings": (g.header(0, 1) + g.text("k") + struct.pack("<IIQ", 9, 8, HUGE) + bytes(64), f"{HUGE} strings"),
    "too many numbers": (g.header(0, 1) + g.text("k") + struct.pack("<IIQ", 9, 10, HUGE) + bytes(64), f"{HUGE} array"),
    "too many arrays": (g.header(0, 1) + g.text("k") + struct.pack("<IIQ", 9, 9, 2**60) + bytes(64), f"{2**60} arrays"),
    "arrays in arrays without end": (
        g.header(0, 1) + g.text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,
        "unsupported type 9",
    ),
    "an unknown value type": (g.header(0, 1) + g.text("k") + struct.pack("<I", 13) + bytes(64), "unknown type 13"),
    "an unknown array type": (
        g.header(0, 1) + g.text("k") + struct.pack("<IIQ", 9, 77, 1) + bytes(64),
        "unsupported type 77",
    ),
    "a key twice": (g.gguf([Entry("k", 4, 1), Entry("k", 4, 2)]), "two metadata entries named 'k'"),
    "a key that is not UTF-8": (g.header(0, 1) + g.text(b"\xff") + struct.pack("<IB", 0, 1) + bytes(32), "not UTF-8"),
    "an alignment of 3": (g.gguf([Entry("general.alignment", 4, 3)]), "no power of two"),
    "an alignment of 0": (g.gguf([Entry("general.alignment", 4, 0)]), "no power of two"),
    "an alignment that is text": (g.gguf([Entry("general.alignment", 8, "x")]), "no power of two"),
    "an unknown quantization": (g.gguf(tensors=[Tensor("t", [32], 99, bytes(128))]), "unknown quantization type 99"),
    "no dimensions": (g.gguf(tensors=[Tensor("t", [], g.F32, bytes(4))]), "0 dimensions"),
    "five dimensions": (g.gguf(tensors=[Tensor("t", [1] * 5, g.F32, bytes(4))]), "5 dimensions"),
    "a dimension of 0": (g.gguf(tensors=[Tensor("t", [4, 0], g.F32, bytes(4))]), "dimension of 0"),
    "a product beyond 64 bits": (g.gguf(tensors=[Tensor("t", [2**40] * 3, g.F32, bytes(4))]), "not lie within"),
    "half a block": (g.gguf(tensors=[Tensor("t", [48], g.Q4_0, bytes(36))]), "no multiple of its block"),
    "a tensor twice": (g.gguf(tensors=[Tensor("t", [8], 0, bytes(32))] * 2), "two tensors named 't'"),
    "an offset beyond the file": (g.gguf(tensors=[Tensor("t", [8], 0, bytes(32), HUGE)]), "not lie within"),
    "an odd offset": (g.gguf(tensors=[Tensor("t", [8], 0, bytes(64), 4)]), "not lie within"),
    "a tensor over another": (
        g.gguf(tensors=[Tensor("a", [16], 0, bytes(64)), Tensor("b", [8], 0, bytes(32), 32)]),
        "'b' overlaps another",
    ),
    "a very long name": (g.gguf(tensors=[Tensor("t" * 9000 + "\n", [8], 99, bytes(32))]), "unknown quantization"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused_in_one_line(cause, lie):
    data, words = LIES[lie]
    assert words in cause(data)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"^model\.gguf: cannot be mapped: No such file"):
        GGUFFile(tmp_path / "model.gguf")


def test_a_file_cut_anywhere_is_refused(written):
    entries = [Entry("a", g.STRING, "text"), Entry("b", g.ARRAY, Array(g.STRING, ["x", "yy"]))]
    whole = g.gguf(entries, [Tensor("t", [64], g.F32, RAMP.tobytes())])
    written(whole)
    for size in range(len(whole)):
        with pytest.raises(ModelError):
            written(whole[:size])


def test_a_part_of_a_quantized_stack_is_read_alone(written):
    data = np.random.default_rng(4).integers(0, 255, 3 * 2 * 34, np.uint8)
    data.reshape(-1, 34)[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    file = written(g.gguf(tensors=[Tensor("t", [32, 2, 3], g.Q8_0, data.tobytes())]))
    whole = file.tensor("t")
    assert whole.shape == (3, 2, 32) and len({part.tobytes() for part in whole}) == 3
    assert all(np.array_equal(file.tensor("t", i), whole[i]) for i in range(3))


def test_a_string_of_megabytes_is_passed_over(written):
    entries = [Entry("long", g.STRING, "x" * (MAX_KEPT_BYTES + 1)), Entry("next", g.STRING, "y")]
    assert written(g.gguf(entries)).metadata == {"next": "y"}


def test_arrays_of_strings_are_read_where_they_lie_and_may_hold_what_is_no_text(written):
    file = written(g.gguf([Entry("k", 9, Array(8, ["a", b"\xff"]))]))
    strings = iter(file.metadata["k"])
    assert next(strings) == "a"
    with pytest.raises(UnicodeDecodeError):
        next(strings)
