"""Drafters that break, and text made to fool the controller: the text stays, and next to no time is lost."""

import random
from itertools import product

import pytest
from drafters_for_tests import Broken, Experience, Truth, answer, replay
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import Sampling
from foredraft.drafters.context import ContextModel
from foredraft.drafters.ngram import NGram
from foredraft.drafters.suffix import Suffix
from foredraft.measure.prices import Prices
from foredraft.measure.replay import Recording
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer

SMALL = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 64}
SAMPLING = Sampling(max_tokens=16, temperature=1.0, seed=2, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("faults") / "tiny.gguf", "qwen2", seed=5, **SMALL)


@pytest.fixture(scope="module")
def twin(path):
    return twin_llm(path)


@pytest.fixture(scope="module")
def tokenizer(path):
    return Tokenizer.from_gguf(read_gguf(path))


# Broken drafters


@pytest.mark.parametrize(("k", "healthy"), [(None, 0), (3, 0), (3, 2)])
@pytest.mark.parametrize("where", ["propose", "catch_up_s", "close", "propose close", "catch_up_s close"])
def test_a_broken_drafter_is_reported_once_and_the_text_stays(twin, where, healthy, k, caplog):
    prompt = twin.tokenize("the quick")
    expected = answer(twin, prompt, SAMPLING, ())
    text = (*prompt, *expected.ids)
    broken, truth = Broken(text, where.split(), healthy), Truth(text)
    found = answer(twin, prompt, SAMPLING, [broken, truth], k)
    assert (found.ids, found.text) == (expected.ids, expected.text)
    assert broken.closed == truth.closed == 1
    records = [record for record in caplog.records if record.name.startswith("foredraft")]
    assert len(records) == 1
    assert "the drafter broken failed" in records[0].message
    assert f"broken in {where.split()[0]}" in records[0].message
    if k and where != "close":
        assert found.figures.by_drafter["truth"].accepted > 0
    twin.pool.check([])


def test_an_interrupt_in_a_drafter_is_not_a_fault(twin, caplog):
    class Interrupted(Truth):
        def propose(self, ask):
            raise KeyboardInterrupt

    drafter = Interrupted(())
    with pytest.raises(KeyboardInterrupt):
        answer(twin, twin.tokenize("the quick"), SAMPLING, [drafter], 3)
    assert drafter.closed == 1
    assert not caplog.records
    twin.pool.check([])


# Text made to fool the controller

PROTOTYPE = Prices({1: 1.0, 6: 1.08, 8: 1.32, 16: 2.2})
MEASURED = Prices({rows: (1 + (0.2634 * rows) ** 4) ** 0.25 for rows in range(1, 65)})
LENGTH = 420


def others(size, order, seed):
    """A de Bruijn sequence: every run of `order` tokens once. What followed a run of one less before never
    follows it again.
    """
    dice = random.Random(seed)
    left = {run: dice.sample(range(size), size) for run in product(range(size), repeat=order - 1)}
    stack, circuit = [(0,) * (order - 1)], []
    while stack:  # an Eulerian circuit, by Hierholzer
        if left[stack[-1]]:
            stack.append((*stack[-1][1:], left[stack[-1]].pop()))
        else:
            circuit.append(stack.pop()[-1])
    return [10 + token for token in circuit[::-1]][:LENGTH]


def betrayed(size, trust, seed):
    """For `trust` tokens what the context model expects, then for as many what it expects least, by turns:
    always tokens of few, so that everything was there before. Without trust never what is expected.
    """
    dice = random.Random(seed)
    model = ContextModel()
    text = dice.choices(range(10, 10 + size), k=8)
    model.add(text)
    while len(text) < LENGTH:
        chances = dict(model.after(text))
        likely = sorted(dice.sample(range(10, 10 + size), size), key=lambda token: chances.get(token, 0.0))
        text.append(likely[-1 if trust and len(text) % (2 * trust) < trust else 0])
        model.add(text[-1:])
    return text


def turning(seed, phase):
    """Repetition, noise, the same repetition, and so on."""
    dice = random.Random(seed)
    phrase = [10 + dice.randrange(200) for _ in range(12)]
    text = []
    while len(text) < LENGTH:
        text += (phrase * phase)[:phase] + [10 + dice.randrange(200) for _ in range(phase)]
    return text


def phrases(seed, length):
    """One phrase over and over, every time followed by another token and some noise: a match of `length`
    tokens, and all of it in vain.
    """
    dice = random.Random(seed)
    phrase = [10 + dice.randrange(100) for _ in range(length)]
    text = []
    while len(text) < LENGTH:
        text += [*phrase, 110 + dice.randrange(150), *(110 + dice.randrange(150) for _ in range(length))]
    return text


FOOLING = {
    **{f"others of {size}, order 2": others(size, 2, 3) for size in (15, 21)},
    "others of 12, order 3": others(12, 3, 3),
    "betrayed of 8, trust 0": betrayed(8, 0, 1),
    "betrayed of 20, trust 0": betrayed(20, 0, 1),
    "betrayed of 20, trust 3": betrayed(20, 3, 1),
    **{f"turning every {phase}": turning(phase, phase) for phase in (15, 60, 170)},
    **{f"phrases of {length}": phrases(length, length) for length in (1, 4)},
    "noise": random.Random(1).choices(range(10, 210), k=LENGTH),
}


def share(tokenizer, text, prices, drafters, experience=None):
    """Of the time without drafting, what drafting takes."""
    recording = Recording(tuple(text[:20]), tuple(text[20:LENGTH]))
    figures = replay(tokenizer, recording, prices, drafters, experience=experience).figures
    return figures.decode_s / ((len(recording.output) - 1) * prices.seconds(1))


@pytest.mark.parametrize("prices", [PROTOTYPE, MEASURED], ids=["prototype", "measured"])
@pytest.mark.parametrize("text", FOOLING.values(), ids=FOOLING)
def test_text_made_to_fool_it_costs_three_per_cent_at_most(tokenizer, text, prices):
    assert share(tokenizer, text, prices, [Suffix()]) <= 1.03


@pytest.mark.parametrize("name", ["others of 21, order 2", "betrayed of 20, trust 0", "noise"])
def test_drafters_that_are_fooled_more_easily_cost_no_more(tokenizer, name):
    for drafters in ([NGram()], [NGram(), Suffix()]):
        assert share(tokenizer, FOOLING[name], PROTOTYPE, drafters) <= 1.03


@pytest.mark.parametrize("prices", [PROTOTYPE, MEASURED], ids=["prototype", "measured"])
def test_experience_with_good_text_does_not_make_it_careless(tokenizer, prices):
    """A whole answer of repetition, and then others that only look like it."""
    experience = Experience()
    assert share(tokenizer, turning(1, LENGTH), prices, [Suffix()], experience) < 0.5
    for name in ("others of 21, order 2", "betrayed of 20, trust 0", "noise"):
        assert share(tokenizer, FOOLING[name], prices, [Suffix()], experience) <= 1.03
