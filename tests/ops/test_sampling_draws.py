"""The keyed noise: its exact bits, its distribution, its independence, and that narrowing loses no winner."""

import numpy as np
import pytest

from headrace.ops import draws, elementary

VOCAB = 49_152


def error_in_units(found: np.ndarray, true: np.ndarray) -> float:
    """Largest error in units of the last place of a float32."""
    return float(np.max(np.abs(found - true) / np.spacing(np.abs(true).astype(np.float32))))


def keys(num: int, seed: int = 0, choice: int = 0, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys of `num` consecutive positions."""
    positions = np.arange(first, first + num, dtype=np.int32)
    return draws.keys(np.full(num, seed, np.uint64), np.full(num, choice, np.int32), positions)


def drawn(gaps: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """One winner per key over the same row [vocab], by the full computation."""
    ids = np.arange(gaps.size, dtype=np.int32)
    return (gaps + draws.noise(ids, low[:, None], high[:, None])).argmax(axis=1)


def chi_square_deviation(counts: np.ndarray, expected: np.ndarray) -> float:
    """(χ² − its mean) / its standard deviation: about normal(0, 1) if the counts come from `expected`."""
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def test_log_is_within_one_unit_of_the_last_place():
    u = (np.arange(0, 2**23, 7).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    wide = np.exp(np.linspace(-16.7, 13, 500_001)).astype(np.float32)
    for x in (u, wide):
        assert error_in_units(elementary.log(x), np.log(x.astype(np.float64))) < 1


def test_exp_is_within_one_unit_of_the_last_place():
    x = np.linspace(-80, 80, 1_000_003).astype(np.float32)
    assert error_in_units(elementary.exp(x), np.exp(x.astype(np.float64))) < 1


def test_the_noise_is_finite_and_rises_with_the_bin():
    noise = draws.gumbel(np.append(np.arange(0, 2**23, 5, dtype=np.uint32), np.uint32(2**23 - 1)))
    assert np.isfinite(noise).all()
    assert (np.diff(noise) >= -2e-7 * np.abs(noise[1:])).all()
    assert (noise[0], noise[-1]) == (np.float32(draws.MIN_NOISE), np.float32(draws.MAX_NOISE))


def mix64(z: int) -> int:
    for shift, factor in draws.MIX64:
        z = (z ^ (z >> shift)) * factor % 2**64
    return z ^ (z >> 31)


def bin_in_whole_numbers(seed: int, choice: int, position: int, token_id: int) -> int:
    """The definition once more, in Python's integers."""
    z = mix64(mix64((seed + int(draws.STEP)) % 2**64) ^ (choice * 2**32 + position))
    high, low = divmod(z, 2**32)
    (shift, factor), (next_shift, next_factor) = draws.MIX32
    h = (token_id + low) % 2**32
    h = (h ^ (h >> shift)) * factor % 2**32 ^ high
    h = (h ^ (h >> next_shift)) * next_factor % 2**32
    return (h ^ (h >> 16)) >> 9


PLACES = ((0, 0, 0), (1, 3, 8_191), (2**64 - 1, 7, 131_071))
IDS = (0, 1, 49_151)
BINS = [[5109091, 1014891, 3604834], [8035164, 5201704, 6893589], [1662091, 1175930, 1445000]]
NOISE_BITS = [
    [1060344810, 3208603627, 1043133041],
    [1078546231, 1060963934, 1070622935],
    [3203833665, 3207390947, 3205532263],
]
LOG_BITS = [3246724498, 3222494606, 3199300443, 0, 1066180436, 1093457855]
EXP_BITS = [1065353208, 1055264370, 996472375, 967827720, 774244412]


def test_the_hash_is_the_one_that_its_page_defines():
    assert [[bin_in_whole_numbers(*place, token_id) for token_id in IDS] for place in PLACES] == BINS


def test_numerics_version_1_is_frozen():
    """A change here changes every seeded text, and needs a new numerics version."""
    seeds, choices, positions = zip(*PLACES, strict=True)
    low, high = draws.keys(np.array(seeds, np.uint64), np.array(choices, np.int32), np.array(positions, np.int32))
    ids = np.array(IDS, np.int32)
    assert draws.bins(ids, low[:, None], high[:, None]).tolist() == BINS
    assert draws.noise(ids, low[:, None], high[:, None]).view(np.uint32).tolist() == NOISE_BITS
    x = np.array([2.0**-24, 0.1, 0.7071, 1.0, 3.0, 49_152.0], np.float32)
    assert elementary.log(x).view(np.uint32).tolist() == LOG_BITS
    assert elementary.exp(-x[:5] * 8).view(np.uint32).tolist() == EXP_BITS


@pytest.mark.covers("M33")
@pytest.mark.parametrize("vary", ["seed", "choice", "position"])
def test_draws_at_temperature_1_have_the_models_probabilities(vary):
    num, p = 60_000, np.array([0.4, 0.25, 0.2, 0.1, 0.03, 0.015, 0.005])
    varied = {"seed": np.zeros(num), "choice": np.zeros(num), "position": np.full(num, 17)}
    varied[vary] = np.arange(num)
    low, high = draws.keys(
        varied["seed"].astype(np.uint64), varied["choice"].astype(np.int32), varied["position"].astype(np.int32)
    )
    counts = np.bincount(drawn(np.log(p / p.max()).astype(np.float32), low, high), minlength=p.size)
    assert abs(chi_square_deviation(counts, num * p)) < 3


@pytest.mark.covers("E6")
@pytest.mark.parametrize("step", [{"seed": 1}, {"choice": 1}, {"first": 1}, {"first": 64}])
def test_draws_of_neighbouring_keys_are_independent(step):
    num, p = 60_000, np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    gaps = np.log(p / p.max()).astype(np.float32)
    pairs = drawn(gaps, *keys(num)) * p.size + drawn(gaps, *keys(num, **step))
    assert abs(chi_square_deviation(np.bincount(pairs, minlength=25), num * np.outer(p, p).ravel())) < 3


def test_noise_of_neighbouring_tokens_is_independent():
    low, high = keys(40_000)
    for distance in (1, 2, 64, 4_096):
        one, other = (draws.bins(np.array([i], np.int32), low, high) for i in (1_000, 1_000 + distance))
        pairs = (one >> 20) * 8 + (other >> 20)
        assert abs(chi_square_deviation(np.bincount(pairs, minlength=64), np.full(64, low.size / 64))) < 3


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 4.0, 8.0])
def test_narrowing_to_contenders_never_loses_the_winner(spread):
    rng = np.random.default_rng(int(spread * 2))
    ids = np.arange(VOCAB, dtype=np.int32)
    for low, high in zip(*keys(6, seed=99), strict=True):
        logits = (rng.standard_normal(VOCAB) * spread).astype(np.float32)
        gaps = logits - logits.max()
        full = int((gaps + draws.noise(ids, low, high)).argmax())
        alive = draws.contenders(ids, gaps, low, high)
        won = draws.winners(ids[alive], gaps[alive], np.array([0]), np.array([low]), np.array([high]))
        assert won.tolist() == [full]
        assert spread < 2 or alive.size <= draws.FEW


def test_a_token_out_of_reach_never_wins_and_one_just_within_can():
    extremes = draws.gumbel(np.array([0, 2**23 - 1], np.uint32))
    assert extremes[0] > extremes[1] - draws.REACH
    assert extremes[0] < extremes[1] - (draws.REACH - np.float32(1.01))


def test_winners_of_ragged_rows_are_found_row_by_row():
    low, high = keys(3, seed=5)
    ids = np.array([3, 9, 11, 2, 4, 4_000], np.int32)
    gaps = np.array([-0.1, 0, -1, 0, 0, -2], np.float32)
    starts = np.array([0, 3, 4])
    alone = [
        int(draws.winners(ids[a:b], gaps[a:b], np.array([0]), low[i : i + 1], high[i : i + 1])[0])
        for i, (a, b) in enumerate(((0, 3), (3, 4), (4, 6)))
    ]
    assert draws.winners(ids, gaps, starts, low, high).tolist() == alone

def test_equal_scores_go_to_the_lowest_id():
    low, high = keys(1)
    level = np.full(3, -np.inf, np.float32)
    assert draws.winners(np.array([7, 5, 6], np.int32), level, np.array([0]), low, high).tolist() == [5]


def test_masses_are_whole_units_whose_sum_has_no_order():
    rng = np.random.default_rng(3)
    gaps = -rng.exponential(6, VOCAB).astype(np.float32)
    mass = draws.masses(gaps)
    assert (mass == np.rint(mass)).all()
    assert mass.sum() == mass[::-1].sum() == np.cumsum(np.sort(mass))[-1]
    assert np.abs(mass / 2.0**34 - np.exp(gaps.astype(np.float64))).max() < 2e-7
    assert draws.masses(np.array([-24.6, -100, -np.inf], np.float32)).tolist() == [0, 0, 0]
