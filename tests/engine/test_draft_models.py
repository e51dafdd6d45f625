"""Draft models of an `LLM`: loaded once, shared by its requests, and never the reason of another text."""

import logging

import numpy as np
import pytest
from tiny import write_tiny

from foredraft import LLM, Drafting, ModelNotFoundError, OutOfMemoryError, Sampling, UsageError
from foredraft.engine.draft_models import DraftModels, DraftOptions
from foredraft.engine.drafting import OFF
from foredraft.models.registry import REGISTRY

PROMPT = list(range(30, 60))
TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """The target; another model of its vocabulary with less room; one of another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    target = write_tiny(folder / "target.gguf", "qwen2", seed=5)
    other = write_tiny(folder / "other.gguf", "qwen2", seed=6, context=128, quant="Q8_0")
    gemma = write_tiny(folder / "gemma.gguf", "gemma3", vocab=320)
    return target, other, gemma


@pytest.fixture(scope="module")
def own(paths):
    """Drafted for by itself."""
    with LLM(paths[0], drafting=Drafting(f"model:{paths[0]}"), draft_quant="file") as llm:
        yield llm


def sampled(count, **more):
    return Sampling(max_tokens=count, ignore_eos=True, **more)


def pool_of(llm, path):
    return llm.roster.model(f"model:{path}").pool


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"repetition_penalty": 1.4, "presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"logit_bias": {40: 5.0, 41: -np.inf}},
        {"temperature": 1.0, "top_k": 40, "seed": 8},
        {"temperature": 1.0, "top_k": 40, "seed": 8, "frequency_penalty": 0.5},
    ],
)
def test_a_model_that_drafts_for_itself_is_always_right(own, paths, k, more):
    """The first round has the prompt's rows and no draft."""
    rounds = 3
    sampling = sampled(1 + rounds * (k + 1), **more)
    drafting = Drafting(f"model:{paths[0]}", k)
    answer = own.generate(PROMPT, sampling, drafting=drafting)
    assert answer.ids == own.generate(PROMPT, sampling, drafting=OFF).ids
    assert answer.figures.acceptance == answer.figures.alpha == 1.0
    assert answer.figures.rounds == 1 + rounds
    assert answer.figures.drafted == rounds * k
    assert set(answer.figures.by_drafter) == {f"model:{paths[0]}"}


def test_without_top_k_the_short_list_is_nearly_always_enough(own, paths):
    sampling = sampled(120, temperature=0.8, seed=3)
    answer = own.generate(PROMPT, sampling, drafting=Drafting(f"model:{paths[0]}", 4))
    assert answer.ids == own.generate(PROMPT, sampling, drafting=OFF).ids
    assert answer.figures.acceptance > 0.9


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_model_that_draws_for_itself_is_always_right(own, paths, rule):
    """p = q: every chance is 1, whatever the short list has."""
    answer = own.generate(
        PROMPT, sampled(1 + 3 * 5, temperature=1.0, seed=3), drafting=Drafting(f"model:{paths[0]}", 4, rule)
    )
    assert answer.figures.acceptance == 1.0
    assert answer.figures.rounds == 4


@pytest.mark.parametrize("drafter", ["model:{}", "ngram+suffix+model:{}"])
@pytest.mark.parametrize("k", [None, 5])
def test_text_is_the_targets_whoever_drafts(paths, drafter, k):
    """The draft model's own context is shorter than the text."""
    drafting = Drafting(drafter.format(paths[1]), k)
    with LLM(paths[0], drafting=drafting) as llm:
        for more in ({}, {"temperature": 0.9, "seed": 4}, {"frequency_penalty": 0.7}):
            sampling = sampled(200, **more)
            answer = llm.generate(PROMPT, sampling)
            assert answer.ids == llm.generate(PROMPT, sampling, drafting=OFF).ids
        pool = pool_of(llm, paths[1])
        assert pool.num_free == pool.num_blocks == llm.roster.model(f"model:{paths[1]}").positions / 64


def test_blocks_come_back_however_an_answer_ends(own, paths):
    drafting, pool = Drafting(f"model:{paths[0]}", 3), pool_of(own, paths[0])
    stream = own.stream(PROMPT, sampled(60), drafting=drafting)
    for _ in range(4):
        next(stream)
    assert pool.num_free < pool.num_blocks
    stream.close()
    assert pool.num_free == pool.num_blocks
    stream = own.stream(PROMPT, sampled(60), drafting=drafting)
    for _ in range(4):
        next(stream)
    del stream
    assert pool.num_free == pool.num_blocks


def test_two_answers_at_once_share_its_memory(own, paths):
    sampling, drafting = sampled(24), Drafting(f"model:{paths[0]}", 3)
    alone = own.generate(PROMPT, sampling, drafting=OFF).ids
    both = [own.stream(PROMPT, sampling, drafting=drafting) for _ in range(2)]
    while not all(stream.ended for stream in both):
        for stream in both:
            next(stream, None)
    for stream in both:
        assert stream.completion.ids == alone
        assert stream.completion.figures.acceptance == 1.0


def test_it_is_loaded_once_and_at_once(paths):
    with LLM(paths[0], drafting=Drafting(f"model:{paths[1]}")) as llm:
        model = llm.roster.model(f"model:{paths[1]}")
        llm.generate(PROMPT, sampled(4))
        assert llm.roster.model(f"model:{paths[1]}") is model


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_another_vocabulary_is_refused_with_what_differs(paths, rule):
    with pytest.raises(UsageError, match=r"gemma\.gguf cannot draft for .* tokens differ"):
        LLM(paths[0], drafting=Drafting(f"model:{paths[2]}", rule=rule))


def test_a_model_that_is_not_there_is_told(paths):
    with pytest.raises(ModelNotFoundError, match=r"missing\.gguf"):
        LLM(paths[0], drafting=Drafting("model:missing.gguf"))


@pytest.fixture
def home(paths, tmp_path, monkeypatch):
    """A cache with a target that the registry knows a drafter for."""
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{TARGET}.gguf").symlink_to(paths[0])
    assert REGISTRY[TARGET].drafter == DRAFT

    def put(path):
        (tmp_path / "models" / f"{DRAFT}.gguf").symlink_to(path)

    return put


def test_auto_takes_the_registrys_drafter_where_it_is_there(home, paths):
    with LLM(TARGET) as llm:
        assert llm.roster.names(llm.drafting) == ["suffix"]
    home(paths[1])
    with LLM(TARGET) as llm:
        assert llm.roster.names(llm.drafting) == ["suffix", f"model:{DRAFT}"]


def test_auto_knows_a_target_by_its_files_name_too(home, paths, tmp_path):
    home(paths[1])
    with LLM(tmp_path / "models" / f"{TARGET}.gguf") as llm:
        assert llm.roster.names(llm.drafting) == ["suffix", f"model:{DRAFT}"]


def test_auto_goes_on_without_a_drafter_that_cannot_be_used(home, paths, caplog):
    home(paths[2])
    with caplog.at_level(logging.WARNING), LLM(TARGET) as llm:
        assert llm.generate(PROMPT, sampled(4)).figures.tokens == 4
    assert [record.message.split(":")[0] for record in caplog.records] == [f"drafting without {DRAFT}"]
    assert "cannot draft for" in caplog.text
    with pytest.raises(UsageError, match="cannot draft for"):
        LLM(TARGET, drafting=Drafting(f"model:{DRAFT}"))


def test_too_little_memory_is_a_warning_under_auto_and_an_error_by_name(home, own, tmp_path, caplog):
    """A context that no machine has memory for; the warning comes once, not with every request."""
    most = 2**31 - 1
    home(write_tiny(tmp_path / "wide.gguf", "qwen2", context=most))
    options = DraftOptions(most, threads=1, quant="q4")
    models = DraftModels(own.target, own.tokenizer, TARGET, own.roster.cost, options)
    with caplog.at_level(logging.WARNING):
        assert models.get_default() is None
        assert models.get_default() is None
    assert len(caplog.records) == 1
    assert "of memory is free" in caplog.text
    with pytest.raises(OutOfMemoryError):
        models.get(DRAFT)
