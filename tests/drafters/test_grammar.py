"""Drafting what a grammar forces, by hand and in whole answers of a tiny model."""

import json

import pytest
from drafters_for_tests import Garbage, Truth
from grammar_oracle import TOKENIZER, grammar, left
from jsonschema import validate
from tiny import write_tiny
from twin_target import twin_llm

from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.core.sampling import Sampling
from foredraft.drafters.grammar import CHANCE, GrammarDrafter
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import OFF, Drafting
from foredraft.engine.grammar import GrammarCompiler, GrammarSpec
from foredraft.engine.speculator import Limits, Speculator
from foredraft.errors import ForedraftError


def test_proposes_what_is_forced_as_far_as_it_may():
    drafter = GrammarDrafter(lambda: [5, 6, 7, 8])
    whole = drafter.propose(Ask([1], 9, 9))
    assert whole == Draft.chain((5, 6, 7, 8), [CHANCE] * 4, "grammar")
    assert drafter.propose(Ask([1], 2, 9)).tokens == drafter.propose(Ask([1], 9, 2)).tokens == (5, 6)
    assert drafter.propose(Ask([1], 0, 9)) is drafter.propose(Ask([1], 9, -1)) is Draft.empty
    drafter.close()


def test_follows_the_text_that_the_grammar_follows():
    here = grammar("regex", "(?:x|y)nameab(?:x|y)nameab")
    drafter = GrammarDrafter(here.forced)
    ask = Ask([], 9, 9)
    assert drafter.propose(ask) is Draft.empty
    here.advance(TOKENIZER.encode("x"))
    first = drafter.propose(ask).tokens
    assert list(first) == TOKENIZER.encode("nameab")[: len(first)] != []
    left(here, first)  # a look at a draft changes nothing
    assert drafter.propose(ask).tokens == first
    here.advance(first[:1])
    assert drafter.propose(ask).tokens == first[1:]


# Whole answers

SCHEMA = {
    "type": "object",
    "properties": {
        "the fox jumps": {"type": "string", "maxLength": 6, "pattern": "^[a-z ]*$"},
        "the lazy dog": {"type": "array", "items": {"enum": ["jumps over", "runs after", 7]}, "maxItems": 3},
        "the trees": {"type": "boolean"},
    },
    "required": ["the fox jumps", "the lazy dog", "the trees"],
    "additionalProperties": False,
}
PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return twin_llm(write_tiny(tmp_path_factory.mktemp("grammar") / "tiny.gguf", seed=2), ctx=400)


@pytest.fixture(scope="module")
def make(llm):
    return GrammarCompiler(llm.tokenizer, llm.target.vocab).compile(GrammarSpec("json", json.dumps(SCHEMA)))


def answer(llm, constraint, sampling, drafters=None, k=8, rule="match"):
    """Drafted for by what `drafters` makes of the constraint, in every round."""
    request = llm.request(llm.tokenize(PROMPT), sampling, 0.0, constraint=constraint)
    drafting, speculator = OFF, None
    if drafters is not None:
        drafting = Drafting("auto", k, rule)
        limits = Limits(llm.target.vocab, request.ends, k)
        speculator = Speculator(drafters(constraint), Controller(PassCost(), Acceptance()), limits)
    with llm.start(request, drafting=drafting, speculator=speculator) as stream:
        list(stream)
    return stream.completion


def forced(constraint):
    return [GrammarDrafter(constraint.forced)]


@pytest.mark.parametrize(
    "sampling", [Sampling(max_tokens=200), Sampling(temperature=1.5, seed=5, max_tokens=200)]
)
def test_the_text_is_the_same_and_forced_tokens_are_right(llm, make, sampling):
    plain = answer(llm, make(), sampling)
    assert plain.finish_reason == "stop"
    validate(json.loads(plain.text), SCHEMA)
    drafted = answer(llm, make(), sampling, forced)
    assert (drafted.text, drafted.ids) == (plain.text, plain.ids)
    figures = drafted.figures
    assert figures.by_drafter["grammar"].accepted == figures.by_drafter["grammar"].drafted > 5
    assert figures.rounds < plain.figures.rounds == len(plain.ids)


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_the_text_is_the_same_whatever_else_is_drafted(llm, make, rule):
    sampling = Sampling(temperature=0.8, seed=3, max_tokens=120, repetition_penalty=1.1)
    plain = answer(llm, make(), sampling)
    text = [*llm.tokenize(PROMPT), *plain.ids]

    def others(constraint):
        return [Garbage(llm.target.vocab, 7, text), *forced(constraint), Truth(text)]

    drafted = answer(llm, make(), sampling, others, 12, rule)
    assert (drafted.ids, drafted.finish_reason) == (plain.ids, plain.finish_reason)
    assert drafted.figures.rounds < plain.figures.rounds


def test_a_complete_text_is_filled_up_with_end_tokens_where_it_must_go_on(llm):
    sampling = Sampling(max_tokens=40, min_tokens=10, ignore_eos=True)
    compiler = GrammarCompiler(llm.tokenizer, llm.target.vocab)
    short = compiler.compile(GrammarSpec("choice", '["the trees", "the wind"]'))
    plain, drafted = answer(llm, short(), sampling), answer(llm, short(), sampling, forced)
    assert plain.ids == drafted.ids
    assert plain.text in ("the trees", "the wind")
    assert (plain.finish_reason, len(plain.ids)) == ("length", 40)


def test_a_grammar_that_fails_ends_its_request_only(llm):
    compiler = GrammarCompiler(llm.tokenizer, llm.target.vocab)
    free = llm.pool.num_free
    many = " | ".join(f'"{number}"' for number in range(2100))
    crowded = compiler.compile(GrammarSpec("grammar", f"start: /[ab]/ /[ab]/ many\nmany: {many}"))
    with pytest.raises(ForedraftError, match="can't go on as its grammar wants"):
        answer(llm, crowded(), Sampling(max_tokens=9))
    with pytest.raises(ForedraftError, match="can't go on as its grammar wants"):
        answer(llm, crowded(), Sampling(max_tokens=9), forced)
    assert answer(llm, compiler.compile(GrammarSpec("regex", "a{3}"))(), Sampling(max_tokens=9)).text == "aaa"
    assert llm.pool.num_free == free
