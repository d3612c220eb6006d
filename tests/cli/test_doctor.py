"""`headrace doctor`: what is well, slow or broken, said of machines that are described to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli import doctor
from headrace.cli.app import run
from headrace.words.config import GIB, Hardware


@pytest.fixture
def well(tmp_path) -> doctor.Place:
    """A machine on which all is well, but that its default model may not be there."""
    return doctor.Place(
        hardware=Hardware(4, 16 * GIB, 12 * GIB, True),
        isas=("portable", "avx2", "avx512"),
        isa="avx512",
        has_torch=False,
        allowed_cores=4,
        load=0.2,
        cache=tmp_path / "cache",
        free_disk_bytes=50 * GIB,
        variables={},
    )


def troubles(place: doctor.Place) -> dict[str, str]:
    found = [f for f in doctor.examine(place) if f.state != "ok" and f.topic != "model"]
    return {f.topic: f"{f.state}: {f.text}" for f in found}


def test_a_machine_without_faults_has_none(well):
    assert troubles(well) == {}


def hardware(**changes) -> dict:
    return {"hardware": replace(Hardware(4, 16 * GIB, 12 * GIB, True), **changes)}


NOT_BUILT = {"isas": None, "isa": None}
CASES = {
    "no kernels": ({**NOT_BUILT, "has_torch": True}, "kernels", "slow: the native kernels were not built"),
    "nothing that computes": (NOT_BUILT, "kernels", "broken: the native kernels were not built"),
    "a forced instruction set": ({"isa": "avx2"}, "kernels", "slow: avx2 by HEADRACE_ISA, though avx512"),
    "an unusable one": (
        {"isa": None, "variables": {"HEADRACE_ISA": "amx"}},
        "kernels",
        "broken: HEADRACE_ISA is 'amx'; usable here are portable, avx2, avx512",
    ),
    "an old processor": ({"isas": ("portable",), "isa": "portable"}, "kernels", "slow: portable"),
    "a quota": (hardware(num_cores=2), "threads", "slow: 2 by the control group's quota, though 4"),
    "fewer threads by wish": (
        {**hardware(num_cores=1), "variables": {"HEADRACE_NUM_THREADS": "1"}},
        "threads",
        "slow: 1 by HEADRACE_NUM_THREADS",
    ),
    "neighbours": ({"load": 3.5}, "load", "slow: a load average of 3.5 on 4 cores"),
    "little memory": (hardware(memory_available_bytes=2 * GIB), "memory", "slow: 2.1 GB available of 17.2 GB"),
    "no memory": (hardware(memory_available_bytes=GIB // 2), "memory", "broken: 536.9 MB available"),
    "a full disk": ({"free_disk_bytes": 5}, "cache", "broken: 5 B free"),
    "a folder that is none": ({"cache": Path("/dev/null/cache")}, "cache", "broken: the cache folder cannot be"),
    "checks": ({"variables": {"HEADRACE_CHECK_INVARIANTS": "1"}}, "invariants", "slow: HEADRACE_CHECK_INVARIANTS"),
    "planned faults": ({"variables": {"HEADRACE_FAULT": "oom@3"}}, "fault", "broken: HEADRACE_FAULT"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_slow_or_broken_is_named_with_its_cause(well, case):
    changes, topic, words = CASES[case]
    found = troubles(replace(well, **changes))
    assert found.keys() == {topic} and found[topic].startswith(words)


def test_secrets_are_not_shown(well):
    place = replace(well, variables={"HF_TOKEN": "hf_secret", "HF_HOME": "/somewhere"})
    shown = " ".join(f.text for f in doctor.examine(place))
    assert "HF_TOKEN=***" in shown and "HF_HOME=/somewhere" in shown and "hf_secret" not in shown


def test_this_machine_is_examined(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    code = run(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"headrace", "packages", "kernels", "threads", "memory", "cache", "model"} <= {f["topic"] for f in found}
    assert code == any(f["state"] == "broken" for f in found)
    model = next(f for f in found if f["topic"] == "model")
    assert model["state"] == "slow" and "headrace models pull smollm2-135m" in model["text"]


def test_a_broken_machine_gives_exit_code_1(capsys, monkeypatch, well):
    monkeypatch.setattr(doctor, "look", lambda: replace(well, free_disk_bytes=0))
    assert run(["doctor"]) == 1
    assert "broken  cache" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "look", lambda: well)
    assert run(["doctor"]) == 0


def test_the_kernels_of_this_machine_are_asked(monkeypatch):
    native = pytest.importorskip("headrace._native", reason="the native kernels were not built")
    monkeypatch.delenv("HEADRACE_ISA", raising=False)
    assert doctor.kernels() == (tuple(native.isas()), native.isas()[-1])
    monkeypatch.setenv("HEADRACE_ISA", "portable")
    assert doctor.kernels()[1] == "portable"
    monkeypatch.setenv("HEADRACE_ISA", "z80")
    assert doctor.kernels()[1] is None
