"""Every drafter, and the cascade of a model that drafts for itself, on a real model: the answer is that of
the same request without drafting.
"""

from itertools import product

import pytest
from real import real_model

from foredraft import LLM, Sampling
from foredraft.core.rules import RULES
from foredraft.engine.drafting import OFF, Drafting

ITSELF = "model:smollm2-135m"
REAL = (  # by turns with two threads and with one
    Drafting(),
    Drafting("ngram", 5),
    Drafting("suffix", 12),
    Drafting("prediction", 6, prediction=" the sun and the moon, the sun and the stars"),
    Drafting(ITSELF, 3),
    Drafting("ngram+suffix"),
    Drafting(f"auto+{ITSELF}", prediction=" the sun"),
)
PROMPTS = (
    "The sun and the moon, the sun and the",
    "def add(a, b):\n    return a + b\n\ndef add3(a, b, c):\n    return",
    '[{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 3,',
    "One, two, three, four,",
    "Dear Sir or Madam,",
    "x x x x x x x",
)
SETTINGS = (
    Sampling(max_tokens=10),
    Sampling(max_tokens=9, temperature=0.8, top_p=0.95, seed=5),
    Sampling(max_tokens=9, temperature=1.0, top_k=40, repetition_penalty=1.2, seed=6, stop=(",",)),
)


@pytest.fixture(scope="module")
def real():
    """The same model with one thread and with two."""
    path = real_model("smollm2-135m")
    with LLM(path, ctx=128, threads=1) as one, LLM(path, ctx=128, threads=2) as two:
        yield one, two
        for llm in (one, two):
            llm.pool.check([])
            llm.roster.model(ITSELF).pool.check([])


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_drafter_on_a_real_model(real, prompt):
    one, two = real
    for sampling in SETTINGS:
        expected = one.generate(prompt, sampling, raw=True, drafting=OFF)
        for number, drafting in enumerate(REAL):
            llm = one if number % 2 else two
            found = llm.generate(prompt, sampling, raw=True, drafting=drafting)
            assert (found.ids, found.text) == (expected.ids, expected.text)
            assert found.finish_reason == expected.finish_reason


@pytest.mark.slow
def test_rules_come_to_the_same_at_temperature_0_on_a_real_model(real):
    one, two = real
    expected = one.generate(PROMPTS[0], SETTINGS[0], raw=True, drafting=OFF)
    for rule, name in product(RULES[1:], (ITSELF, f"suffix+{ITSELF}")):
        drafting = Drafting(name, 4, rule)
        assert two.generate(PROMPTS[0], SETTINGS[0], raw=True, drafting=drafting).ids == expected.ids
