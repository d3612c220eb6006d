"""The prefix cache: what hits, what must not, when blocks are published, and what is forgotten first."""

from typing import Any

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.cache_manager import CacheManager
from headrace.schedule.prefix import ROOT, Key, PrefixIndex
from headrace.schedule.sequence import Sequence
from headrace.words.params import MediaSpan, Request, Sampling
from headrace.words.plan import CacheLayout

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)


def cached(harness: Harness, request_id: int) -> int:
    return harness.record(request_id).events[-1].num_cached_tokens


def one_by_one(*requests: dict[str, Any], **config: Any) -> Harness:
    """Each request runs to its end before the next one comes."""
    harness = Harness(**config)
    for request in requests:
        options = {"prompt": PROMPT, "max_tokens": 1, "ignore_eos": True} | request
        harness.add(options.pop("prompt"), **options)
        harness.run()
    harness.check_idle()
    return harness


@pytest.mark.covers("M30", "E8", "I6")
def test_the_same_prompt_of_two_blocks_finds_one_since_a_token_must_be_computed():
    harness = one_by_one({}, {})
    assert (cached(harness, 1), cached(harness, 2)) == (0, 4)
    [segment] = harness.plans[-1].segments
    assert (segment.start, segment.length) == (4, 4)
    harness.check_as_alone()


@pytest.mark.covers("M30", "6a")
def test_references_of_a_shared_block_go_from_one_to_two_and_back_to_none():
    harness = Harness()
    total = harness.scheduler.cache.pool.num_free
    harness.add(PROMPT, max_tokens=3, ignore_eos=True)
    harness.step()
    head = harness.sequence(1).block_ids[0]
    refs = [harness.scheduler.cache.pool.refs[head]]
    harness.add(PROMPT, max_tokens=3, ignore_eos=True)
    for _ in range(3):
        harness.step()
        refs.append(harness.scheduler.cache.pool.refs[head])
    assert refs == [1, 2, 1, 0] and harness.scheduler.cache.pool.num_free == total
    assert cached(harness, 2) == 4


@pytest.mark.covers("M30", "E8")
def test_a_hit_needs_every_id_and_the_same_way_to_it():
    index = PrefixIndex()
    entry, is_new = index.publish(Key(ROOT, (1, 2, 3, 4), ()), 1)
    assert is_new and index.find(Key(ROOT, (1, 2, 3, 4), ())) == entry
    others = (Key(ROOT, (1, 2, 3, 5), ()), Key(entry, (1, 2, 3, 4), ()), Key(ROOT, (1, 2, 3, 4), (("salt", "x"),)))
    assert [index.find(key) for key in others] == [None] * 3


@pytest.mark.covers("M30", "E8")
def test_ids_that_collide_under_a_hash_are_told_apart():
    assert hash((-1,)) == hash((-2,))
    index = PrefixIndex()
    index.publish(Key(ROOT, (-1,), ()), 1)
    assert index.find(Key(ROOT, (-2,), ())) is None


@pytest.mark.covers("E8", "D1")
def test_sixteen_prompts_sharing_1024_tokens_compute_1536_in_one_step_of_2048():
    harness = Harness(num_blocks=200, block_size=16, max_num_seqs=16, max_num_batched_tokens=2_048, max_model_len=2_048)
    shared = [i % 13 for i in range(1_024)]
    for i in range(16):
        harness.add(shared + [i] * 32, max_tokens=1, ignore_eos=True)
    plan = harness.scheduler.schedule()
    assert plan.num_tokens == 1_024 + 16 * 32 == 1_536
    assert [segment.length for segment in plan.segments] == [1_056] + [32] * 15


@pytest.mark.covers("E8", "I24")
@pytest.mark.parametrize("overlap", [False, True])
def test_prompts_that_hit_blocks_of_their_own_step_get_the_tokens_they_get_alone(overlap):
    harness = Harness(overlap=overlap, max_num_batched_tokens=64)
    for i in range(4):
        harness.add([*PROMPT, i], max_tokens=6, ignore_eos=True)
    assert [segment.length for segment in harness.step().segments] == [9, 1, 1, 1]
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("E8")
def test_a_prompt_in_chunks_is_found_as_far_as_it_is_launched():
    harness = Harness(max_num_batched_tokens=6)
    harness.add([*PROMPT, 9], max_tokens=2, ignore_eos=True)
    harness.step()
    harness.add([*PROMPT, 10], max_tokens=2, ignore_eos=True)
    plan = harness.step()
    assert [(segment.start, segment.length) for segment in plan.segments] == [(6, 3), (8, 1)], "published in this step"


@pytest.mark.covers("E8", "6g")
def test_blocks_filled_while_decoding_are_found_by_the_next_turn_of_the_talk():
    harness = Harness()
    harness.add(PROMPT, max_tokens=9, ignore_eos=True)
    harness.run()
    talk = [*PROMPT, *harness.record(1).token_ids]
    harness.add([*talk, 1, 2, 3], max_tokens=1, ignore_eos=True)
    harness.run().check_idle()
    assert cached(harness, 2) == 16, "8 of the prompt and 8 outputs; the ninth was never computed"


@pytest.mark.covers("6g", "E8")
def test_a_freed_block_keeps_its_content_until_somebody_needs_the_room():
    harness = one_by_one({}, {"prompt": (11,) * 27}, {}, num_blocks=8)
    assert cached(harness, 3) == 4, "one block was left, and unpublished ones went first"
    harness = one_by_one({}, {"prompt": (11,) * 31}, {}, num_blocks=8)
    assert cached(harness, 3) == 0


@pytest.mark.covers("6g", "E8")
def test_the_tail_of_a_freed_prompt_is_given_away_before_its_head():
    long = tuple(range(1, 18))
    harness = one_by_one({"prompt": long}, {"prompt": (11,) * 8}, {"prompt": long}, num_blocks=5)
    assert cached(harness, 3) == 12, "of four full blocks the last one went, and the one that was never published"


@pytest.mark.covers("6g")
def test_a_block_with_the_same_content_does_not_take_the_entry_of_the_first_one_with_it():
    index, cache = PrefixIndex(), CacheManager(CacheLayout(9, 4))
    key = Key(ROOT, (1, 2, 3, 4), ())
    entry, _ = index.publish(key, 1)
    assert index.publish(key, 2) == (entry, False)
    index.forget_block(2)
    assert index.find(key) == entry and index.block(entry) == 1
    first, twin = (Sequence(i, Request(i, "r", PROMPT, Sampling()), 0, i, 0.0, list(PROMPT)) for i in (1, 2))
    for seq in (first, twin):
        assert cache.admit(seq)
    for seq in (first, twin):
        seq.num_computed = 8
        cache.publish(seq)
    cache.release(twin)
    assert cache.match(Sequence(3, first.request, 0, 3, 0.0, [*PROMPT, 9])) == first.entries
    assert [cache.index.block(entry) for entry in first.entries] == first.block_ids


@pytest.mark.covers("6g", "T8")
def test_cached_blocks_that_nobody_holds_count_as_blocks_to_be_taken():
    harness = Harness(num_blocks=5)
    harness.add(PROMPT, max_tokens=1, ignore_eos=True)
    harness.run()
    assert harness.scheduler.cache.pool.num_free == 5
    harness.add((20,) * 12, max_tokens=9, ignore_eos=True)
    harness.add([*PROMPT, 9], max_tokens=1, ignore_eos=True)
    harness.step()
    assert harness.scheduler.num_running == 1, "two hits and one new block do not fit into two free ones"
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("E8")
def test_a_salt_separates_and_the_same_salt_shares():
    harness = one_by_one({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {})
    assert [cached(harness, i) for i in range(1, 6)] == [0, 0, 0, 4, 4]


@pytest.mark.covers("E8")
def test_an_adapter_separates():
    harness = one_by_one({}, {"adapter": "a"}, {"adapter": "a"}, {"adapter": "a", "cache_salt": "a"})
    assert [cached(harness, i) for i in range(1, 5)] == [0, 0, 4, 0]


@pytest.mark.covers("E8")
def test_another_image_or_another_place_of_it_separates_from_its_block_on():
    prompt = tuple(range(1, 17))

    def at(start: int, digest: str) -> dict[str, Any]:
        return {"prompt": prompt, "spans": (MediaSpan(start, 2, "handle", digest),)}

    harness = one_by_one(at(5, "cat"), at(5, "dog"), at(4, "cat"), at(5, "cat"), {"prompt": prompt})
    assert [cached(harness, i) for i in range(1, 6)] == [0, 4, 4, 12, 4]


@pytest.mark.covers("E8", "E7")
@pytest.mark.parametrize("scoring", [{"prompt_logprobs": 0}, {"pooling": "mean"}])
def test_a_request_about_every_position_reads_no_cached_block_but_leaves_its_own(scoring):
    harness = one_by_one({}, scoring, scoring)
    assert [cached(harness, i) for i in (1, 2, 3)] == [0, 0, 0]
    assert cached(one_by_one(scoring, {}), 2) == 4


@pytest.mark.covers("E8")
def test_without_prefix_caching_everything_is_computed_and_nothing_remembered():
    harness = one_by_one({}, {}, {}, enable_prefix_caching=False)
    assert harness.device.num_tokens == 24 and harness.scheduler.stats().cached_tokens == 0
    assert not len(harness.scheduler.cache.index)
    harness.check_as_alone()


@pytest.mark.covers("D27", "E8", "D40")
def test_a_preempted_sequence_finds_its_own_blocks_again():
    harness = Harness(num_blocks=8)
    for i in range(2):
        harness.add([i, 2, 3, 4, 5, 6, 7, 8], max_tokens=12, ignore_eos=True)
    harness.run().check_idle()
    stats = harness.scheduler.stats()
    assert stats.preemptions == 1 and stats.cached_tokens > 0
    assert stats.computed_prefill_tokens + stats.cached_tokens == stats.prompt_tokens + stats.recomputed_tokens
    harness.check_as_alone()


@pytest.mark.covers("E8", "I30")
def test_queries_and_hits_are_counted():
    harness = one_by_one({}, {}, {"prompt": (9, 9, 9)})
    stats = harness.scheduler.stats()
    assert (stats.prefix_queries, stats.cached_tokens, stats.prompt_tokens) == (19, 4, 19)
    assert stats.computed_prefill_tokens == 15
