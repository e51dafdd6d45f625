"""What is drafted, by whom, and how much of it: nothing of that changes an answer. Every answer here is
compared with that of the same request without drafting: ids, text, the reason why it ended, and logprobs to
the bit.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from drafters_for_tests import Garbage, Truth, answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import LLM, Sampling
from foredraft.core.rules import RULES
from foredraft.engine.drafting import OFF, Drafting

SMALL = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 64}
CTX = 64
WORDS = "the fox, the dog, the fox, the "
WHATEVER = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lossless")


@pytest.fixture(scope="module")
def path(folder):
    return write_tiny(folder / "tiny.gguf", "qwen2", seed=5, **SMALL)


@pytest.fixture(scope="module")
def twin(path):
    return twin_llm(path, ctx=CTX)


@pytest.fixture(scope="module")
def models(path, folder):
    """Drafters of the tiny model: itself, and one that always guesses otherwise."""
    other = write_tiny(folder / "other.gguf", "qwen2", seed=6, **SMALL)
    return (f"model:{path}", f"model:{other}")


@pytest.fixture(scope="module")
def native(path):
    with LLM(path, ctx=CTX, threads=1) as llm:
        yield llm


def shown(completion):
    return completion.ids, completion.text, completion.finish_reason, completion.logprobs


def check_nothing_leaks(llm, drafters=()):
    llm.pool.check([])
    for name in drafters:
        if name.startswith("model:"):
            llm.roster.model(name).pool.check([])


@st.composite
def samplings(draw):
    return Sampling(
        temperature=draw(st.sampled_from((0.0, 0.3, 1.0, 2.0))),
        top_k=draw(st.sampled_from((0, 0, 1, 5))),
        top_p=draw(st.sampled_from((1.0, 1.0, 0.7))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.1))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.3))),
        presence_penalty=draw(st.sampled_from((0.0, 0.0, 0.5))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, -0.4, 0.6))),
        logit_bias=draw(st.sampled_from(({}, {}, {118: 4.0, 206: -float("inf")}))),
        seed=draw(st.integers(0, 5)),
        max_tokens=draw(st.integers(1, 30)),
        ignore_eos=draw(st.booleans()),
    )


prompts = st.lists(st.integers(0, 299), min_size=1, max_size=45)
lengths = st.one_of(st.none(), st.integers(0, 9), st.integers(0, 63))


def endings(data, sampling, free):
    """The sampling, perhaps with a stop string or an end token that the answer has."""
    way = data.draw(st.sampled_from(("none", "stop", "end")))
    if way == "stop" and free.text:
        start = data.draw(st.integers(0, len(free.text) - 1))
        return replace(sampling, stop=(free.text[start : start + data.draw(st.integers(1, 5))],))
    if way == "end":
        return replace(sampling, stop_token_ids=(data.draw(st.sampled_from(free.ids)),))
    return sampling


@settings(WHATEVER, max_examples=40)
@given(data=st.data(), prompt=prompts, sampling=samplings(), k=lengths, seed=st.integers(0, 99))
def test_random_trees_change_nothing(twin, data, prompt, sampling, k, seed):
    free = twin.generate(prompt, sampling, drafting=OFF)
    sampling, logprobs = endings(data, sampling, free), data.draw(st.sampled_from((None, 2)))
    expected = twin.generate(prompt, sampling, logprobs=logprobs, drafting=OFF)
    drafters = [Garbage(300, seed, (*prompt, *free.ids)), Garbage(300, seed + 1, (*prompt, *free.ids))]
    found = answer(twin, prompt, sampling, drafters, k, logprobs)
    assert shown(found) == shown(expected)
    assert found.prompt_tokens == len(prompt)
    check_nothing_leaks(twin)


NAMES = ("auto", "ngram", "suffix", "ngram+suffix", "prediction", "prediction+suffix")


@settings(WHATEVER, max_examples=80)
@given(data=st.data(), sampling=samplings(), k=lengths)
def test_no_drafter_changes_anything(native, models, data, sampling, k):
    repeated = data.draw(st.lists(st.integers(0, 299), min_size=1, max_size=8))
    prompt = (repeated * data.draw(st.integers(1, 6)))[:45]
    free = native.generate(prompt, sampling, drafting=OFF)
    sampling, logprobs = endings(data, sampling, free), data.draw(st.sampled_from((None, 0, 2)))
    expected = native.generate(prompt, sampling, logprobs=logprobs, drafting=OFF)
    model = data.draw(st.sampled_from(models))
    name = data.draw(st.sampled_from((*NAMES, model, f"ngram+{model}", f"auto+{model}")))
    guess = data.draw(st.sampled_from((WORDS, free.text)))
    predicts = {"prediction", "auto"} & set(name.split("+"))
    drafting = Drafting(name, k, prediction=guess if predicts else None)
    found = native.generate(prompt, sampling, logprobs=logprobs, drafting=drafting)
    assert shown(found) == shown(expected)
    check_nothing_leaks(native, drafting.names)


@settings(WHATEVER, max_examples=30)
@given(data=st.data(), prompt=prompts, sampling=samplings(), k=lengths, seed=st.integers(0, 99))
def test_random_trees_change_nothing_on_the_native_engine(native, data, prompt, sampling, k, seed):
    free = native.generate(prompt, sampling, logprobs=1, drafting=OFF)
    found = answer(native, prompt, sampling, [Garbage(300, seed, (*prompt, *free.ids))], k, 1)
    assert shown(found) == shown(free)
    check_nothing_leaks(native)


# An answer that ends inside a burst

ENDLESS = Sampling(max_tokens=24, temperature=1.5, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def told(twin):
    """A prompt, what comes after it, and a drafter that knows."""
    prompt = twin.tokenize(WORDS)
    free = twin.generate(prompt, ENDLESS, drafting=OFF)
    return prompt, free, lambda: Truth((*prompt, *free.ids))


@pytest.mark.parametrize("k", [1, 4, 7])
def test_the_truth_is_accepted_whole(twin, told, k):
    prompt, free, truth = told
    found = answer(twin, prompt, ENDLESS, [truth()], k)
    assert shown(found) == shown(free)
    assert len(prompt) > 4  # more than may stand beside a draft: one token comes with the prompt
    assert found.figures.rounds == 1 + -(-23 // (k + 1))
    assert found.figures.accepted == found.figures.drafted
    assert found.figures.tokens_per_round == pytest.approx(24 / found.figures.rounds)


@pytest.mark.parametrize("k", [3, 7])
def test_every_length_cuts_a_burst_where_it_should(twin, told, k):
    prompt, free, truth = told
    for most in range(1, 14):
        found = answer(twin, prompt, replace(ENDLESS, max_tokens=most), [truth()], k)
        assert (found.ids, found.finish_reason) == (free.ids[:most], "length")
        assert found.figures.tokens == most
    check_nothing_leaks(twin)


@pytest.mark.parametrize("k", [3, 7])
def test_every_end_token_and_stop_string_cuts_a_burst_where_it_should(twin, told, k):
    prompt, free, truth = told
    ways = [replace(ENDLESS, stop_token_ids=(token,)) for token in dict.fromkeys(free.ids[:14])]
    ways += [replace(ENDLESS, stop=(free.text[start : start + 2],)) for start in range(0, 20, 2)]
    for sampling in ways:
        expected = twin.generate(prompt, sampling, drafting=OFF, logprobs=1)
        assert expected.finish_reason == "stop"
        assert shown(answer(twin, prompt, sampling, [truth()], k, 1)) == shown(expected)
    check_nothing_leaks(twin)


@pytest.mark.parametrize("target", ["twin", "native"])
@pytest.mark.parametrize("left", range(1, 8))
def test_the_context_ends_inside_a_burst(request, target, left):
    llm = request.getfixturevalue(target)
    prompt = list(range(100, 100 + CTX - left))
    expected = llm.generate(prompt, ENDLESS, drafting=OFF)
    assert len(expected.ids) == left
    for k in (3, 63):
        found = answer(llm, prompt, ENDLESS, [Truth((*prompt, *expected.ids, *range(80)))], k)
        assert shown(found) == shown(expected)
    check_nothing_leaks(llm)


# Streams, conversations


def by_turns(llm, texts, sampling, drafting):
    with ExitStack() as stack:
        streams = [
            stack.enter_context(llm.stream(text, sampling, raw=True, drafting=drafting)) for text in texts
        ]
        waiting = list(streams)
        while waiting:
            waiting = [stream for stream in waiting if next(stream, None) is not None]
        return [stream.completion.ids for stream in streams]


def test_streams_with_a_draft_model_taken_by_turns(path, models):
    sampling = replace(ENDLESS, max_tokens=12)
    with LLM(path, ctx=256, threads=1) as llm:
        expected = by_turns(llm, ("one", "another", "a third"), sampling, OFF)
        assert by_turns(llm, ("one", "another", "a third"), sampling, Drafting(models[0], 3)) == expected
        check_nothing_leaks(llm, models)


@pytest.mark.parametrize("drafter", ["suffix", "model"])
def test_a_draft_never_takes_memory_that_is_not_there(native, models, drafter):
    """Two answers fill the memory, so that no draft reaches beyond the block that each of them has."""
    sampling = replace(ENDLESS, temperature=0.0, max_tokens=40)
    assert native.pool.num_blocks == 2
    expected = by_turns(native, (WORDS[:9], WORDS[:8]), sampling, OFF)
    name = models[0] if drafter == "model" else drafter
    assert by_turns(native, (WORDS[:9], WORDS[:8]), sampling, Drafting(name, 63)) == expected
    check_nothing_leaks(native, models)


def test_a_conversation_with_drafts_is_the_same(path, models):
    sampling = replace(ENDLESS, max_tokens=8)
    answers = []
    for drafting in (OFF, Drafting("suffix", 5), Drafting(models[0], 4), Drafting()):
        with LLM(path, ctx=256, threads=1, drafting=drafting) as llm:
            with llm.chat("be brief") as chat:
                answers.append([chat.send(text, sampling).ids for text in ("hello", "hello hello", "go on")])
            check_nothing_leaks(llm, drafting.names)
    assert all(found == answers[0] for found in answers)


# The other rules


@settings(WHATEVER, max_examples=40)
@given(data=st.data(), prompt=prompts, sampling=samplings(), k=lengths, rule=st.sampled_from(RULES[1:]))
def test_under_other_rules_the_answer_ends_as_it_should(native, models, data, prompt, sampling, k, rule):
    """At temperature 0 they come to the same. Otherwise a seed gives another text."""
    model = data.draw(st.sampled_from(models))
    drafting = Drafting(data.draw(st.sampled_from((model, f"suffix+{model}", "suffix"))), k, rule)
    found = native.generate(prompt, sampling, drafting=drafting)
    if sampling.temperature == 0.0:
        assert shown(found) == shown(native.generate(prompt, sampling, drafting=OFF))
    figures = found.figures
    assert found.prompt_tokens == len(prompt)
    assert figures.tokens == len(found.ids) <= min(sampling.max_tokens, CTX - len(prompt))
    assert found.finish_reason == "stop" or figures.tokens == min(sampling.max_tokens, CTX - len(prompt))
    assert figures.tokens <= figures.rounds + figures.accepted <= figures.tokens + 1
    assert figures.accepted <= figures.depths <= figures.drafted or not figures.drafted
    assert sum(one.accepted for one in figures.by_drafter.values()) == figures.accepted
    assert native.generate(prompt, sampling, drafting=drafting).prompt_tokens == len(prompt)
    check_nothing_leaks(native, drafting.names)


def test_the_same_seed_draws_the_same_text_under_every_rule(native, models):
    """With a fixed length. Where the controller decides, time does, and with it the draft."""
    for rule in RULES:
        drafting = Drafting(models[0], 4, rule)
        first, again = (native.generate(WORDS, ENDLESS, drafting=drafting) for _ in range(2))
        assert first.ids == again.ids
