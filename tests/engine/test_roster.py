"""Who drafts for a request, and what one request leaves to the next."""

import pytest
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import LLM, Sampling, UsageError
from foredraft.core.history import History
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import OFF, Drafting
from foredraft.engine.roster import Roster, Task
from foredraft.engine.speculator import Moment
from foredraft.measure.replay import VirtualClock

SMALL = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 64}
TASK = Task([1, 2, 3], frozenset({7}))
WORDS = "the quick brown fox"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("roster") / "tiny.gguf", "qwen2", seed=5, **SMALL)


@pytest.fixture(scope="module")
def twin(path):
    return twin_llm(path)


def names(llm, drafting):
    return llm.roster.names(drafting)


def test_auto_is_what_needs_no_model_and_the_prediction_if_there_is_one(twin):
    assert names(twin, Drafting()) == ["suffix"]
    assert names(twin, Drafting(prediction="the")) == ["prediction", "suffix"]
    assert names(twin, OFF) == names(twin, Drafting("ngram", k=0)) == []


def test_drafters_are_asked_in_the_order_given_models_last_and_none_twice(path):
    with LLM(path) as llm:
        model = f"model:{path}"
        assert names(llm, Drafting(f"{model}+ngram+suffix")) == ["ngram", "suffix", model]
        assert names(llm, Drafting(f"{model}+auto+ngram")) == ["suffix", "ngram", model]
        assert names(llm, Drafting("suffix+auto")) == ["suffix"]


def test_without_wishes_it_is_auto(path):
    with LLM(path) as llm:
        assert llm.drafting == Drafting()
        assert (llm.drafting.drafter, llm.drafting.k, llm.drafting.rule) == ("auto", None, "match")


def test_a_model_is_loaded_once_and_refused_where_there_is_none(path, twin):
    with LLM(path, drafting=Drafting(f"model:{path}")) as llm:
        assert llm.roster.model(f"model:{path}") is llm.roster.model(f"model:{path}")
    with pytest.raises(UsageError, match="no draft models"):
        names(twin, Drafting(f"model:{path}"))


def test_a_model_with_other_tokens_is_refused_at_once(path, tmp_path):
    other = write_tiny(tmp_path / "other.gguf", "gemma3")
    with pytest.raises(UsageError, match="cannot draft for"):
        LLM(path, drafting=Drafting(f"model:{other}"))


def test_a_request_without_drafters_is_not_drafted_for(twin):
    speculator = twin.roster.speculator(OFF, TASK)
    assert speculator.by_drafter == {}
    completion = twin.generate(WORDS, Sampling(max_tokens=6, ignore_eos=True), drafting=OFF)
    assert (completion.figures.drafted, completion.figures.rounds) == (0, 6)


@pytest.mark.parametrize("remember", [True, False])
def test_an_answer_helps_the_next_one_if_it_may_be_remembered(path, remember):
    with LLM(path, remember=remember) as llm:
        sampling = Sampling(max_tokens=24, temperature=2.0, seed=4, ignore_eos=True)
        first, again = (llm.generate(WORDS, sampling, drafting=Drafting("suffix", k=4)) for _ in range(2))
        assert first.ids == again.ids
        if remember:
            assert again.figures.rounds < 0.7 * first.figures.rounds
        else:
            assert again.figures.rounds == first.figures.rounds


def test_what_a_pass_costs_is_known_to_the_next_request(path):
    with LLM(path) as llm:
        assert not llm.roster.cost.is_known
        llm.generate(WORDS, Sampling(max_tokens=4, ignore_eos=True))
        assert llm.roster.cost.is_known
        events = []
        list(llm.stream(WORDS, Sampling(max_tokens=4, ignore_eos=True), trace=events.append))
        assert all(event.predicted_s > 0.0 for event in events)


def test_prediction_is_tokens_of_the_target(twin):
    sampling, events = Sampling(max_tokens=12, ignore_eos=True), []
    drafting = Drafting("prediction", 3, prediction=WORDS)
    with twin.stream(WORDS, sampling, trace=events.append, drafting=drafting) as stream:
        list(stream)
    assert stream.completion.ids == twin.generate(WORDS, sampling, drafting=OFF).ids
    drafted = next(event for event in events if event.drafted)
    # The prompt's round gave a token that is another than predicted: one in place of one, it is taken.
    assert drafted.drafted == tuple(twin.tokenize(WORDS)[1:4])
    assert drafted.drafters == ("prediction",) * 3


def test_closing_frees_the_memory_of_a_draft_model(path):
    with LLM(path, drafting=Drafting(f"model:{path}", k=4)) as llm:
        stream = llm.stream(WORDS, Sampling(max_tokens=40, ignore_eos=True))
        next(stream)
        next(stream)
        pool = llm.roster.model(f"model:{path}").pool
        assert pool.num_free < pool.num_blocks
        stream.close()
        pool.check([])


def test_the_clock_is_the_callers(twin):
    roster, clock = Roster(twin.target, twin.tokenizer, PassCost(), None, remember=False), VirtualClock()
    speculator = roster.speculator(Drafting("ngram", 4), TASK, clock)
    text = [1, 2, 3, 1, 2]
    draft = speculator.draft(Moment(text, History(text), Sampling(), pending=1, room=9, depth=9))
    assert draft.tokens == (3, 1, 2, 3)
    assert speculator.by_drafter["ngram"].seconds == 0.0
    speculator.close()


@pytest.mark.parametrize(
    ("drafter", "options", "complaint"),
    [
        ("ngrams", {}, "no drafter 'ngrams'"),
        ("", {}, "no drafter ''"),
        ("off+ngram", {}, "stands alone"),
        ("ngram+ngram", {}, "no drafter twice"),
        ("model:", {}, "names no model"),
        ("prediction", {}, "needs the predicted text"),
        ("ngram", {"k": -1}, "k is -1"),
        ("ngram", {"k": 64}, "k is 64"),
        ("ngram", {"rule": "exact"}, "rule is 'exact'"),
    ],
)
def test_impossible_wishes_are_refused(drafter, options, complaint):
    with pytest.raises(UsageError, match=complaint):
        Drafting(drafter, **options)


def test_a_models_path_may_have_a_plus():
    assert Drafting("ngram+model:a+b.gguf+suffix").names == ("ngram", "model:a+b.gguf", "suffix")


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"drafter": "off", "rule": "ratio"}, "nothing to judge"),
        ({"drafter": "off", "k": 5}, "nothing is drafted"),
        ({"drafter": "suffix", "prediction": "text"}, "a prediction is given"),
        ({"drafter": "prediction:file"}, "not a file"),
    ],
)
def test_wishes_that_cannot_be_honoured_are_refused(wishes, says):
    with pytest.raises(UsageError, match=says):
        Drafting(**wishes)
