"""What is proved holds on a tiny model; and what is wrong is found."""

from dataclasses import replace

import numpy as np
import pytest
from planted import BIASED, RIGHT, Cut, fixed, scheduler
from tiny import write_tiny

from foredraft import LLM
from foredraft.core.rules import Ratio
from foredraft.core.sampling import Sampling
from foredraft.core.target import NO_TAPS, Scores
from foredraft.engine.drafting import Drafting
from foredraft.measure.prove import Effort, prove
from foredraft.measure.prove_bits import same_bits
from foredraft.measure.prove_ids import cases_of, drafted_ids, planted_ids
from foredraft.measure.prove_law import Sampled, exact_law, narrowed, sampled_law
from foredraft.measure.prove_pair import Pair, engine_rounds
from foredraft.measure.prove_parts import Claim
from foredraft.measure.prove_toy import Toy, distance, own_law
from foredraft.models.chat import ChatTemplate
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import LoadOptions, NativeTarget

PROMPTS = ("the quick brown fox jumps over", "what is drafted here is checked")
BRIEF = Effort(
    prompts=2,
    tokens=12,
    lengths=(None, 3),
    batches=(3,),
    law_prompts=1,
    rounds=2,
    sampled=Sampled(150, 1e-3),
)


def silent(_text):
    pass


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("prove") / "tiny.gguf", "llama", seed=5)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A drafter that is often wrong."""
    return write_tiny(tmp_path_factory.mktemp("prove") / "other.gguf", "llama", seed=6)


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, drafting=Drafting("suffix"), remember=False) as llm:
        yield llm
        llm.pool.check([])


def test_every_claim_holds_on_a_tiny_model(llm):
    claims = list(prove(llm, "ngram+suffix", BRIEF, silent))
    assert [claim.name for claim in claims] == [
        "ids",
        "ids together",
        "bits",
        "law, exact",
        "law, engine",
        "law, sampled",
    ]
    assert [claim.failures for claim in claims] == [()] * 6
    assert all(claim.holds for claim in claims)


def test_every_claim_holds_with_a_draft_model(path, other):
    with LLM(path, remember=False) as llm:
        for claim in prove(llm, f"model:{other}", BRIEF, silent):
            assert claim.failures == () and claim.holds


def test_a_claim_that_was_not_checked_does_not_hold():
    assert not Claim("x", "nothing was compared", 0).holds


class Wobbly(NativeTarget):
    """Its logits depend a little on how many rows are computed together."""

    def forward(self, rows, caches, wanted, taps=NO_TAPS, **others):
        scores = super().forward(rows, caches, wanted, taps, **others)
        noise = np.random.default_rng(len(rows)).normal(0, 0.3, scores.logits.shape[1])
        return Scores(scores.logits + noise.astype(np.float32), scores.hidden)


@pytest.fixture(scope="module")
def wobbly(llm, path):
    file = read_gguf(path)
    native = Wobbly.load(file, describe(file), LoadOptions(16))
    target = Wobbly(native.spec, native.model)
    return LLM.of(target, llm.tokenizer, ChatTemplate.from_gguf(file, llm.tokenizer), ctx=400, remember=False)


def test_a_target_that_is_not_invariant_is_found_out(wobbly):
    cases = cases_of(wobbly, PROMPTS, 24, silent)
    bits = same_bits(wobbly, cases[:1], [1], silent)
    assert len(bits.failures) == 3
    assert "chain, 1 threads: " in bits.failures[0] and "logits differ, by" in bits.failures[0]
    together = planted_ids(wobbly, cases, [2], [1], silent)
    assert not together.holds
    assert "planted trees, 2 at a time, 1 threads: token " in together.failures[0]
    drafted = drafted_ids(wobbly, cases, [Drafting("suffix", 4)], silent)
    assert not drafted.holds
    assert "suffix, k 4, rule match: token " in drafted.failures[0]
    gaps = [float(text.split("logits are ")[1].split(" apart")[0]) for text in drafted.failures]
    assert all(gap < 3.0 for gap in gaps)  # the wobble cannot turn a clearer decision


@pytest.mark.parametrize("name", BIASED)
def test_enumeration_finds_a_planted_bias(name):
    claim = exact_law({name: BIASED[name]})
    assert not claim.holds
    assert claim.failures[0].startswith(f"{name}, ")


def test_enumeration_passes_what_is_right():
    assert exact_law({name: RIGHT[name] for name in ("ratio, cut after", "block, cut by entropy")}).holds


FAR = Toy(fixed(0.7, 0.2, 0.1), fixed(0.1, 0.2, 0.7))


SAME = Toy(fixed(0.7, 0.2, 0.1), fixed(0.7, 0.2, 0.1))


@pytest.mark.parametrize(
    ("name", "pair"), [("full remainder", FAR), ("other temperature", SAME), ("ratio, own probability", FAR)]
)
def test_sampling_finds_a_planted_bias(name, pair):
    claim = sampled_law([pair], Sampled(500, 1e-3), silent, {name: BIASED[name]})
    assert not claim.holds
    assert "chi-square" in claim.failures[0]


def test_sampling_finds_the_schedulers_bias():
    pair = Toy(fixed(0.7, 0.3), fixed(0.5, 0.5))
    claim = sampled_law([pair], Sampled(250, 1e-3), silent, {"scheduler": Cut(Ratio(), scheduler)})
    assert not claim.holds


def test_sampling_passes_what_is_right():
    assert sampled_law([FAR, Toy.random(3, 4)], Sampled(150, 1e-3), silent).holds


def test_what_cannot_occur_is_found():
    class Other(Ratio):
        def remainder(self, draft, laws, accepted):
            return np.array((0.0, 0.0, 1.0))

    pair = Toy(fixed(0.5, 0.5, 0.0), fixed(0.9, 0.1, 0.0))
    claim = sampled_law([pair], Sampled(20, 1e-3), silent, {"other": Other()})
    assert "cannot occur" in claim.failures[0]


def test_a_pair_over_fewer_tokens_has_the_same_law():
    wide = np.zeros(500)
    wide[[3, 77, 499]] = 0.5, 0.3, 0.2
    shifted = np.roll(wide, -3)
    pair = Toy(lambda text: wide if len(text) % 2 else shifted, lambda text: shifted)
    law = own_law(narrowed(pair, 2), 2)
    ids = [0, 3, 74, 77, 496, 499]
    named = {tuple(ids[token] for token in text): chance for text, chance in law.items() if chance}
    assert distance(named, own_law(pair, 2)) == 0.0


class Lying(Pair):
    """Its drafter states other distributions than it draws from."""

    def draft(self, text, k, sampling):
        draft = super().draft(text, k, sampling)
        sharp = [law**3 for law in draft.laws]
        return replace(draft, laws=tuple(law / law.sum() for law in sharp))


def test_a_drafter_that_states_other_distributions_is_found_out(llm):
    prompt = tuple(llm.prompter.encode(PROMPTS[0], False))
    assert engine_rounds([Pair(llm, prompt, None)], 4, silent).holds
    claim = engine_rounds([Lying(llm, prompt, None)], 12, silent)
    assert "but its distributions give" in claim.failures[0]


class Deaf(Pair):
    """Expects the target to be asked at another temperature."""

    def target(self, text):
        return self._law(text, Sampling(temperature=0.5, top_k=10, seed=0))


def test_an_engine_that_judges_by_other_laws_is_found_out(llm):
    prompt = tuple(llm.prompter.encode(PROMPTS[0], False))
    claim = engine_rounds([Deaf(llm, prompt, None)], 12, silent)
    assert any("expected" in failure for failure in claim.failures)
