"""A whole engine over a tiny model: files to tokens, both call orders, faults of the device, and what was decided."""

import asyncio

import pytest
from tests.engine import tiny, toys

from headrace.engine.build import build_engine
from headrace.engine.host import AsyncLLM
from headrace.engine.llm_engine import LLMEngine
from headrace.llm import LLM
from headrace.words.config import EngineConfig, engine_config
from headrace.words.errors import ConfigError, ModelError, RequestError
from headrace.words.params import PoolingParams, SamplingParams

PROMPTS = [[*f"prompt {i} {'x' * (7 * i)}".encode()] for i in range(8)]
PARAMS = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=10, logprobs=2) for i in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tiny.write(tmp_path_factory.mktemp("models") / "tiny"))


def engine(folder: str, fault=None, **options):
    """An engine whose rows have the same bits in any company: 16 rows at a time, on one thread."""
    from headrace.ops.reference import ReferenceOps

    asked = engine_config(model=folder, num_threads=1, max_num_seqs=8, **options)
    return build_engine(asked, ops=ReferenceOps("float32", 1, fixed_rows=16), fault=fault)


def answers(model: LLM) -> list[tuple]:
    outputs = model.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].finish_reason) for o in outputs]


@pytest.fixture(scope="module")
def expected(folder) -> list[tuple]:
    """Each prompt alone."""
    with LLM.from_engine(engine(folder, enable_prefix_caching=False)) as model:
        alone = []
        for prompt, params in zip(PROMPTS, PARAMS, strict=True):
            choice = model.generate([prompt], params, use_tqdm=False)[0].outputs[0]
            alone.append((choice.token_ids, choice.logprobs, choice.finish_reason))
    assert len({tuple(ids) for ids, _, _ in alone}) == 8
    return alone


WAYS = {
    "in a batch": {},
    "overlapped": {"async_scheduling": True},
    "in chunks": {"max_num_batched_tokens": 8},
    "preempted": {"num_gpu_blocks_override": 12, "block_size": 8},
    "preempted and overlapped": {"num_gpu_blocks_override": 12, "block_size": 8, "async_scheduling": True},
}


@pytest.mark.covers("I24", "I25", "D42")
@pytest.mark.parametrize("way", WAYS)
def test_company_order_chunks_and_preemption_change_no_bit(folder, expected, way):
    with LLM.from_engine(engine(folder, max_model_len=88, **WAYS[way])) as model:
        assert answers(model) == expected
        assert (model.get_metrics().num_preemptions > 0) == way.startswith("preempted")


@pytest.mark.covers("D18", "I23")
@pytest.mark.parametrize("half", ["forward", "sample"])
@pytest.mark.parametrize("overlap", [False, True], ids=["in order", "overlap"])
def test_a_device_that_raises_once_is_not_noticed(folder, expected, half, overlap):
    raised = []

    def fault(where, plan):
        if where == half and plan.step == 4 and not raised:
            raised.append(plan.step)
            raise MemoryError("the device is out of memory")

    with LLM.from_engine(engine(folder, fault, async_scheduling=overlap)) as model:
        assert answers(model) == expected
        assert raised == [4] and model.get_metrics().num_failed_steps == 1


@pytest.mark.covers("T24", "I23")
@pytest.mark.parametrize(
    "overlap",
    [
        pytest.param(False, id="in order"),
        pytest.param(True, id="overlap"),
    ],
)
def test_a_row_with_nan_logits_ends_alone_and_its_blocks_harm_nobody(folder, expected, overlap):
    with LLM.from_engine(engine(folder, async_scheduling=overlap)) as model:
        for _ in range(2):
            bad = [[tiny.NAN_ID, *b"poisoned"]] * 3
            outputs = model.generate([*PROMPTS, *bad], [*PARAMS, *[SamplingParams()] * 3], use_tqdm=False)
            choices = [output.outputs[0] for output in outputs]
            assert [(c.token_ids, c.logprobs, c.finish_reason) for c in choices[:8]] == expected
            assert [c.finish_reason for c in choices[8:]] == ["error"] * 3
            assert all(c.token_ids == [] and "finite" in c.finish_detail for c in choices[8:])


def test_a_stream_from_the_thread_is_the_offline_answer(folder, expected):
    async def work():
        llm = AsyncLLM(engine(folder))
        try:
            return await asyncio.gather(*(last(llm, *each) for each in zip(PROMPTS, PARAMS, strict=True)))
        finally:
            llm.shutdown()

    async def last(llm, prompt, params):
        ids = []
        async for output in llm.generate(prompt, params, kind="delta"):
            ids += output.outputs[0].token_ids
        return ids

    assert asyncio.run(work()) == [ids for ids, _, _ in expected]


def test_engines_are_made_from_engine_args(folder):
    asked = EngineConfig(model=folder, num_threads=1, max_model_len=32)
    driven = LLMEngine.from_engine_args(asked)
    assert driven.engine.resolved.scheduler.max_model_len == 32
    driven.close()
    AsyncLLM.from_engine_args(asked).shutdown()


def test_everything_of_the_checkpoint_arrives(folder):
    with LLM(folder, num_threads=1) as model:
        parts = model.llm_engine.engine
        assert model.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=9)
        assert {2, 3, min(toys.bytewise().special_ids)} == set(parts.resolved.scheduler.eos_token_ids)
        assert parts.resolved.scheduler.max_model_len == 128 and parts.model.vocab_size == tiny.VOCAB
        output = model.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=2), use_tqdm=False)[0]
        assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        vector = model.embed("hello", PoolingParams(dimensions=8), use_tqdm=False)[0].embedding
        assert sum(x * x for x in vector) == pytest.approx(1)


def test_the_generation_config_can_be_turned_off(folder):
    for name in ("headrace", "vllm"):
        with LLM(folder, num_threads=1, generation_config=name) as model:
            assert model.get_default_sampling_params() == SamplingParams()
    with pytest.raises(ConfigError, match="generation_config: must be one of auto, vllm, headrace"):
        LLM(folder, generation_config="mine")


@pytest.mark.covers("M26")
def test_the_scheduler_has_the_blocks_that_the_worker_measured(folder):
    with LLM(folder, num_threads=1, kv_cache_memory_bytes=200_000) as model:
        parts = model.llm_engine.engine
        per_block = 16 * 2 * tiny.LAYERS * tiny.KV_HEADS * 32 * 4  # a head takes whole 32 dimensions
        assert parts.layout.num_blocks == 200_000 // per_block
        assert parts.core.scheduler.cache.pool.num_blocks == parts.layout.num_blocks
        assert parts.core.scheduler.stats().num_blocks == parts.layout.num_blocks - 1


def test_a_length_nobody_asked_for_shrinks_to_the_cache_and_an_asked_one_is_an_error(folder, caplog):
    with LLM(folder, num_threads=1, num_gpu_blocks_override=3) as model:
        assert model.llm_engine.engine.resolved.scheduler.max_model_len == 48
        output = model.generate([[65] * 50], use_tqdm=False)[0]
        assert output.outputs[0].finish_reason == "prompt_length_exceeded" and "48" in output.finish_detail
    assert "shrinks from 128 to 48" in caplog.text
    with pytest.raises(ConfigError, match="holds 48 tokens .* got 100"):
        LLM(folder, num_threads=1, num_gpu_blocks_override=3, max_model_len=100)


def test_a_template_may_come_from_the_option_or_a_file(folder, tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
    for option in ("{{ messages[0].content }}!", str(tmp_path / "mine.jinja")):
        with LLM(folder, num_threads=1, chat_template=option) as model:
            assert model.get_chat_template().render([{"role": "user", "content": "hi"}]).text == "hi!"
    with pytest.raises(ConfigError, match="'none.jinja' is neither a template nor a readable file"):
        LLM(folder, chat_template=str(tmp_path / "none.jinja"))


def test_progress_hears_of_every_byte_that_is_loaded(folder):
    heard = []
    build_engine(engine_config(model=folder, num_threads=1), progress=lambda *told: heard.append(told)).close()
    assert {what for what, _, _ in heard} == {"load"}
    done = [told[1] for told in heard]
    assert done == sorted(done) and heard[-1][1] == heard[-1][2]


def test_what_is_wrong_with_a_model_is_said_in_one_line(tmp_path, folder):
    with pytest.raises(ModelError, match="no such file or folder"):
        LLM(str(tmp_path / "nothing"))
    broken = tiny.write(tmp_path / "broken")
    (broken / "config.json").write_text('{"architectures": ["Unheard"]')
    with pytest.raises(ModelError, match="config.json"):
        LLM(str(broken))
    with pytest.raises(ConfigError, match="max_modle_len: unknown engine option; did you mean 'max_model_len'"):
        LLM(folder, max_modle_len=5)


def test_foreign_ids_are_refused_up_to_the_logits_width(folder):
    with LLM(folder, num_threads=1) as model:
        with pytest.raises(RequestError, match="ids must be from 0 to 319, got 320"):
            model.generate([[tiny.VOCAB]])
        assert model.generate([[tiny.VOCAB - 2]], SamplingParams(max_tokens=1), use_tqdm=False)[0].finished
