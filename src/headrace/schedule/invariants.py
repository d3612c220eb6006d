"""What must hold after every event (LIFECYCLE section 7): checks of a scheduler's books, for tests and debug mode."""

from __future__ import annotations

from collections import Counter

from headrace.schedule.cache_manager import extra_keys
from headrace.schedule.scheduler import Scheduler
from headrace.schedule.sequence import Sequence, Status
from headrace.words.plan import NULL_BLOCK


def check(scheduler: Scheduler) -> None:
    """Raises AssertionError naming the invariant that is broken."""
    check_blocks(scheduler)
    check_sharing(scheduler)
    check_index(scheduler)
    check_holdings(scheduler)
    check_rows(scheduler)
    check_membership(scheduler)
    check_tokens(scheduler)


def check_blocks(scheduler: Scheduler) -> None:
    """I1, I2: references are the holders; free and used blocks are the pool."""
    pool = scheduler.cache.pool
    held = Counter(block for seq in scheduler.live() for block in seq.block_ids)
    held.update(pool.leased())
    for block in range(pool.num_blocks):
        refs = pool.refs[block]
        assert refs == held[block] >= 0, f"I1: block {block} has {refs} references and {held[block]} holders"
    blank, cached = pool.free_ids()
    free = blank + cached
    assert len(set(free)) == len(free), "I2: a block is free twice"
    assert not set(free) & {block for block in held if held[block]}, "I2: a block is free and used"
    used = {block for block in held if held[block]}
    assert set(free) | used == set(range(1, pool.num_blocks)), "I2: free and used blocks are not the pool"
    assert NULL_BLOCK not in free and NULL_BLOCK not in used, "I2: the null block was handed out"
    assert all(pool.index.has_block(block) for block in cached), "I2: a cached free block has no entry"
    assert not any(pool.index.has_block(block) for block in blank), "I2: a blank block has an entry"


def check_sharing(scheduler: Scheduler) -> None:
    """I3: a block is in two tables only at the same place, full, behind equal tokens and keys."""
    size = scheduler.cache.block_size
    owner: dict[int, tuple[int, Sequence]] = {}
    for seq in scheduler.live():
        for i, block in enumerate(seq.block_ids):
            first_i, first = owner.setdefault(block, (i, seq))
            if first is seq:
                assert first_i == i, "I3: a block is twice in one table"
                continue
            end = (i + 1) * size
            assert first_i == i and len(seq.tokens) >= end, "I3: shared at different places"
            assert first.tokens[:end] == seq.tokens[:end], "I3: shared by unequal prefixes"
            assert all(extra_keys(seq, j, size) == extra_keys(first, j, size) for j in range(i + 1)), "I3: unequal keys"


def check_index(scheduler: Scheduler) -> None:
    """I6: every entry names a block whose holders have these ids there, behind a parent with the ids before."""
    size, index = scheduler.cache.block_size, scheduler.cache.index
    blocks = [block for _, block in index.entries().values()]
    assert len(set(blocks)) == len(blocks), "I6: a block has two entries"
    for key, block in index.entries().values():
        assert index.find(key) is not None and index.has_block(block) and len(key.ids) == size, "I6: index out of step"
    for seq in scheduler.running.values():
        for i, entry in enumerate(seq.entries):
            if index.block(entry) is not None:
                ids = index.key(entry).ids
                assert tuple(seq.tokens[i * size : (i + 1) * size]) == ids, "I6: an entry with other ids"
        assert len(seq.entries) * size <= seq.num_computed, "I6: published before it is computed"


def check_holdings(scheduler: Scheduler) -> None:
    """I5: a running sequence holds what it computed and at most one step more; all others hold nothing."""
    cache = scheduler.cache
    for seq in scheduler.live():
        held = len(seq.block_ids)
        if seq.status is Status.RUNNING:
            most = cache.blocks_for(seq.num_known + scheduler.config.num_drafts)
            assert cache.blocks_for(seq.num_computed) <= held <= most, f"I5: {held} blocks for {seq.num_known} tokens"
        else:
            assert held == 0 and seq.row is None and seq.num_computed == 0 and seq.pending == 0, "I5: it owns something"


def check_rows(scheduler: Scheduler) -> None:
    """I9: rows are owned once, by running sequences."""
    owned = [seq.row for seq in scheduler.running.values()]
    rows = sorted(row for row in owned if row is not None)
    assert len(rows) == len(owned), "I9: a running sequence has no row"
    everything = sorted(rows + scheduler.roster.free_rows)
    assert everything == list(range(1, scheduler.config.max_num_seqs + 1)), "I9: a row is lost or owned twice"


def check_membership(scheduler: Scheduler) -> None:
    """I11, I12: every live sequence is in exactly one place, and its status says which."""
    places = {
        Status.BLOCKED: set(scheduler.roster.blocked),
        Status.RUNNING: set(scheduler.running),
        Status.WAITING: {seq.seq_id for seq in scheduler.queue.members()},
    }
    live = {seq.seq_id: seq for seq in scheduler.live()}
    assert sum(map(len, places.values())) == len(live), "I11: a sequence is lost or in two places"
    for status, ids in places.items():
        assert all(i in live and live[i].status is status for i in ids), f"I12: a status disagrees with {status.value}"
    for seq in live.values():
        assert (seq.status is Status.BLOCKED) == bool(seq.gates), "I11: beyond gates that are closed"
        assert not seq.request.gates or seq.timeline[0].target == Status.BLOCKED.value, "I11: it passed by its gates"
    known = {i for siblings in scheduler.roster.requests.values() for i in siblings}
    assert known == set(live), "I11: the request map disagrees"
    assert len(scheduler.running) <= scheduler.config.max_num_seqs, "I12: too many run"
    assert scheduler.queue.num_tokens == sum(len(seq.tokens) for seq in scheduler.queue.members()), "I12: queue tokens"


def check_tokens(scheduler: Scheduler) -> None:
    """I16, I18, I19: counts of tokens agree, and no limit is passed."""
    for seq in scheduler.live():
        assert tuple(seq.tokens[: seq.num_prompt_tokens]) == seq.request.prompt_ids, "I16: the prompt changed"
        assert seq.pending >= 0, "I19: fewer than no tokens in flight"
        assert seq.num_output_tokens <= seq.request.max_tokens, "I18: more outputs than max_tokens"
        assert len(seq.tokens) <= scheduler.config.max_model_len, "I18: longer than max_model_len"
        if seq.request.max_tokens:
            assert seq.num_computed <= seq.num_known - (seq.pending == 0), "I16: computed beyond what is known"
    if not scheduler.in_flight:
        assert all(seq.pending == 0 for seq in scheduler.live()), "I19: pending without a step in flight"
        for seq in scheduler.running.values():
            if seq.request.max_tokens:
                assert seq.num_computed <= len(seq.tokens) - 1, "I16: computed beyond the last token but one"


def check_idle(scheduler: Scheduler) -> None:
    """I7: with nobody alive, nothing is used."""
    check(scheduler)
    assert not list(scheduler.live()) and not scheduler.in_flight
    assert scheduler.cache.pool.num_used == 0, "I7: blocks are used while idle"
    assert len(scheduler.roster.free_rows) == scheduler.config.max_num_seqs, "I7: rows are used while idle"
