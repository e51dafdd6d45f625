"""The law of the rules, counted through on small vocabularies; the dice against it; and the round."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from planted import BIASED, RIGHT, Cut, OtherToken, fixed, scheduler
from tiny import write_tiny
from twin_target import TwinTarget

from foredraft.core import noise
from foredraft.core.history import History
from foredraft.core.nouns import Draft, Verdict
from foredraft.core.pick import Place, draw, probabilities
from foredraft.core.round import Turn, play
from foredraft.core.rules import ACCEPT, DRAFT, MAX_ANCHOR, RESIDUAL, Block, Dice, Ratio, decide, judge
from foredraft.core.sampling import Sampling
from foredraft.engine.kv import KVPool
from foredraft.errors import UsageError
from foredraft.measure.chisquare import chi_square
from foredraft.measure.prove_toy import Toy, distance, mean_length, own_law, round_law, text_law
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf

EXACT = 1e-12
SIZES = [(2, 1, 3), (2, 3, 4), (3, 2, 3), (4, 1, 2), (4, 2, 2), (4, 3, 2)]  # vocabulary, k, tokens


def drawn(tokens, *laws):
    return replace(Draft.chain(tokens), laws=tuple(np.array(law) for law in laws))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize(("vocab", "k", "length"), SIZES)
def test_a_right_rule_keeps_the_targets_law(name, vocab, k, length):
    for seed in range(3):
        toy = Toy.random(seed, vocab)
        assert distance(text_law(RIGHT[name], toy, k, length), own_law(toy, length)) < EXACT


@pytest.mark.parametrize("name", BIASED)
def test_a_planted_bias_is_seen(name):
    toys = [Toy.random(seed, 3) for seed in range(6)]
    assert max(distance(text_law(BIASED[name], toy, 2, 3), own_law(toy, 3)) for toy in toys) > 1e-3


def test_a_search_over_drawn_tokens_biases_as_published():
    toy = Toy(fixed(0.7, 0.3), fixed(0.5, 0.5))
    biased = text_law(Cut(Ratio(), scheduler), toy, 2, 1)
    assert biased == {(0,): pytest.approx(0.85), (1,): pytest.approx(0.15)}
    for honest in (0, 1, 2):  # the length as such is harmless
        exact = text_law(Cut(Ratio(), lambda _, honest=honest: honest), toy, 2, 1)
        assert exact == {(0,): pytest.approx(0.7), (1,): pytest.approx(0.3)}


def test_a_comparison_with_another_token_turns_the_law_round():
    law = text_law(OtherToken(), Toy(fixed(0.9, 0.1), fixed(0.1, 0.9)), 1, 1)
    assert law[(0,)] == pytest.approx(0.092)  # .1 * .2 + .1 * .8 * .9


@pytest.mark.parametrize("rule", [Ratio(), Block()])
def test_equal_laws_accept_everything(rule):
    toy = Toy.random(3, 3)
    same = Toy(toy.target, toy.target)
    assert mean_length(round_law(rule, same, (), 3)) == pytest.approx(4)
    assert distance(text_law(rule, same, 2, 3), own_law(toy, 3)) < EXACT


def test_block_accepts_at_least_as_many_as_ratio():
    gains = []
    for seed in range(30):
        toy = Toy.random(seed, 3)
        for k in (1, 2, 3):
            gains.append(
                mean_length(round_law(Block(), toy, (), k)) - mean_length(round_law(Ratio(), toy, (), k))
            )
    assert min(gains) > -EXACT
    assert max(gains) > 0.02


def test_ratio_by_hand():
    draft = drawn([0, 2], (0.5, 0.5, 0.0), (0.2, 0.0, 0.8))
    laws = [np.array(law) for law in ((0.25, 0.25, 0.5), (0.2, 0.4, 0.4), (0.1, 0.2, 0.7))]
    assert Ratio().chances(draft, laws) == [0.5, 0.5]
    assert Ratio().remainder(draft, laws, 0).tolist() == [0.0, 0.0, 1.0]
    assert Ratio().remainder(draft, laws, 1).tolist() == [0.0, 1.0, 0.0]
    assert Ratio().remainder(draft, laws, 2).tolist() == [0.1, 0.2, 0.7]
    assert [Ratio().reached(passed) for passed in ([False, True], [True, False], [True, True])] == [0, 1, 2]


def test_block_by_hand():
    draft = drawn([0, 2], (0.5, 0.5, 0.0), (0.2, 0.0, 0.8))
    laws = [np.array(law) for law in ((0.25, 0.25, 0.5), (0.2, 0.4, 0.4), (0.1, 0.2, 0.7))]
    # w_1 = .5; w_1 p_2 - q_2 = (-.1, .2, -.6), so R_1 = .2 and .2 / (.2 + .5); w_2 = .5 * .5
    assert Block().chances(draft, laws) == pytest.approx([2 / 7, 0.25])
    assert Block().remainder(draft, laws, 0).tolist() == [0.0, 0.0, 1.0]
    assert Block().remainder(draft, laws, 1).tolist() == [0.0, 1.0, 0.0]
    assert [Block().reached(passed) for passed in ([False, True], [True, False], [False, False])] == [2, 1, 0]


@pytest.mark.parametrize("rule", [Ratio(), Block()])
def test_a_token_that_its_own_law_does_not_have_is_never_accepted(rule):
    draft = drawn([1, 0], (1.0, 0.0), (0.5, 0.5))
    laws = [np.array((0.5, 0.5))] * 3
    assert rule.chances(draft, laws)[-1] == 0.0 or isinstance(rule, Ratio)
    for seed in range(50):
        assert decide(rule, draft, laws, Dice(seed, 7)).path == ()


@pytest.mark.parametrize("rule", [Ratio(), Block()])
def test_where_nothing_is_left_over_the_targets_law_stands_in(rule):
    law = np.array((0.25, 0.75))
    assert rule.remainder(drawn([0], law), [law, law], 0).tolist() == law.tolist()


@pytest.mark.parametrize("rule", [Ratio(), Block()])
@pytest.mark.parametrize("padding", [-1, 0, 2])
def test_vocabularies_may_be_padded_differently(rule, padding):
    """The tokens that only one of them has are never drafted and never picked."""
    p, q = np.array((0.5, 0.3, 0.2, 0.0)), np.array((0.2, 0.6, 0.2, 0.0))
    other = np.resize(np.append(q, [0.0] * 2), 4 + padding)
    for tokens in ([0, 1], [1, 1]):
        narrow, padded = drawn(tokens, q, q), drawn(tokens, other, other)
        assert rule.chances(padded, [p] * 3) == rule.chances(narrow, [p] * 3)
        assert rule.remainder(padded, [p] * 3, 1).tolist() == rule.remainder(narrow, [p] * 3, 1).tolist()


# The dice


def words_of(seed, counter):
    """Philox4x32-10 in whole numbers of any size."""
    a, b, c, d = counter
    key = [seed % 2**32, seed >> 32]
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (second >> 32) ^ b ^ key[0], second % 2**32, (first >> 32) ^ d ^ key[1], first % 2**32
        key = [(word + step) % 2**32 for word, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return [a, b, c, d]


@pytest.mark.parametrize("anchor", [0, 1, 4095, MAX_ANCHOR])
@pytest.mark.parametrize("kind", [DRAFT, ACCEPT, RESIDUAL])
def test_noise_has_room_for_every_stream(anchor, kind):
    stream = Dice(0, anchor).stream(kind)
    assert stream % 4 == kind and stream // 4 == anchor
    leading, trailing = (words_of(2**64 - 2, (1, 2**32 - 1, stream, half))[2] for half in (0, 1))
    bits = (leading << 21 | trailing >> 11) | 1
    assert noise.uniform(2**64 - 2, 2**32 - 1, 6, stream).tolist() == [bits * 2.0**-53]


@pytest.mark.parametrize("anchor", [-1, MAX_ANCHOR + 1])
def test_a_text_too_long_for_noise_is_refused(anchor):
    with pytest.raises(UsageError, match=str(anchor)):
        Dice(0, anchor)


def test_certain_chances_are_certain():
    assert all(Dice(seed, 3).passes([0.0, 1.0, 0.0]) == [False, True, False] for seed in range(50))


def test_a_draw_has_only_possible_tokens():
    law = np.array((0.0, 5.0, 0.0, 15.0))  # need not add up to 1
    counts = Counter(Dice(seed, 9).draw(law, 2) for seed in range(1200))
    assert counts.keys() == {1, 3}
    assert chi_square([counts[1], counts[3]], [300, 900]).p_value > 1e-6


def logits_of(law):
    with np.errstate(divide="ignore"):
        return np.log(law).astype(np.float32)


def drawn_round(rule, toy, k, seed, text=(), anchor=None):
    """One round as the engine makes it: drafted, judged, and what it adds."""
    dice = Dice(seed, len(text) if anchor is None else anchor)
    tokens, proposed = [], []
    for index in range(k):
        sampling = Sampling(temperature=1.0, seed=seed)
        place = Place(sampling, dice.anchor + index, stream=dice.stream(DRAFT))
        one = draw(logits_of(toy.drafter((*text, *tokens))), place)
        tokens.append(one.token)
        proposed.append(one.law)
    draft = drawn(tokens, *proposed)
    laws = [toy.target((*text, *tokens[:depth])) for depth in range(k + 1)]
    return decide(rule, draft, laws, dice).burst(draft)


@pytest.mark.parametrize("rule", [Ratio(), Block()])
def test_the_dice_follow_the_law_of_a_round(rule):
    toy = Toy.random(5, 3)
    draws = 900
    law = round_law(rule, toy, (), 2)
    counts = Counter(drawn_round(rule, toy, 2, seed) for seed in range(draws))
    assert counts.keys() <= law.keys()
    test = chi_square([counts[burst] for burst in law], [draws * law[burst] for burst in law])
    assert test.cells > 10 and test.p_value > 1e-6


def written(rule, toy, seed, anchor=None):
    """The first three tokens, in rounds of two drafted ones."""
    text = ()
    while len(text) < 3:
        text += drawn_round(rule, toy, 2, seed, text, anchor)
    return text[:3]


@pytest.mark.parametrize("rule", [Ratio(), Block()])
def test_the_dice_of_several_rounds_follow_the_targets_law(rule):
    toy = Toy.random(5, 2)
    law, draws = own_law(toy, 3), 600
    counts = Counter(written(rule, toy, seed) for seed in range(draws))
    assert chi_square([counts[text] for text in law], [draws * law[text] for text in law]).p_value > 1e-6


def test_rounds_that_share_their_noise_would_be_seen():
    toy, draws = Toy.random(7, 2), 500
    law = own_law(toy, 3)
    counts = Counter(written(Block(), toy, seed, anchor=0) for seed in range(draws))
    assert chi_square([counts[text] for text in law], [draws * law[text] for text in law]).p_value < 1e-6


def test_judge_is_the_rule_of_that_name():
    toy = Toy.random(1, 4)
    draft = drawn([0, 1], toy.drafter(()), toy.drafter((0,)))
    laws = [toy.target(()), toy.target((0,)), toy.target((0, 1))]
    for seed in range(50):
        assert judge("ratio", draft, laws, Dice(seed, 5)) == decide(Ratio(), draft, laws, Dice(seed, 5))
        assert judge("block", draft, laws, Dice(seed, 5)) == decide(Block(), draft, laws, Dice(seed, 5))


# The round


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    file = read_gguf(write_tiny(tmp_path_factory.mktemp("rules") / "tiny.gguf", "gemma3", window=8))
    return TwinTarget(file, describe(file))


def chain_from(target, text, history, sampling, k):
    """A chain drawn from the target's own laws at a higher temperature."""
    hot = replace(sampling, temperature=3.0)
    dice = Dice(sampling.seed, len(text))
    tokens, laws = [], []
    for index in range(k):
        place = Place(hot, len(text) + index, history, tuple(tokens), dice.stream(DRAFT))
        one = draw(target.logits((*text, *tokens)), place)
        tokens.append(one.token)
        laws.append(one.law)
    return drawn(tokens, *laws)


def verdict_alone(target, turn):
    """Judged without a round: laws from every prefix for itself."""
    text = tuple(turn.text)
    laws = []
    for depth in range(len(turn.draft) + 1):
        path = turn.draft.tokens[:depth]
        laws.append(probabilities(target.logits(text + path), Place(turn.sampling, 0, turn.history, path)))
    return judge(turn.rule, turn.draft, laws, Dice(turn.sampling.seed, len(text)))


SAMPLING = Sampling(temperature=1.2, top_k=40, seed=11, repetition_penalty=1.2, frequency_penalty=0.2)


def test_drawn_turns_and_match_turns_share_a_round(target):
    pool = KVPool(16)
    prompts = [[40, 41, 42], [9, 8], [100, 50, 7, 7], [3]]
    rules = ["ratio", "match", "block", "match"]
    samplings = [SAMPLING, SAMPLING, replace(SAMPLING, seed=4), Sampling()]
    caches, histories = [pool.open() for _ in prompts], [History(prompt) for prompt in prompts]
    texts = [list(prompt) for prompt in prompts]
    accepted = Counter()
    for _ in range(8):
        turns = []
        for text, history, cache, sampling, rule in zip(
            texts, histories, caches, samplings, rules, strict=True
        ):
            own = replace(sampling, seed=sampling.seed or 0)
            turns.append(
                Turn(cache, text, history, sampling, chain_from(target, text, history, own, 3), rule)
            )
        expected = [verdict_alone(target, turn) if turn.rule != "match" else None for turn in turns]
        outcomes = play(target, turns)
        pool.check(caches)
        for turn, outcome, alone in zip(turns, outcomes, expected, strict=True):
            assert alone is None or outcome.verdict == alone
            assert bool(outcome.picks) == (alone is None)
            accepted[turn.rule] += len(outcome.verdict.path)
            burst = outcome.verdict.burst(turn.draft)
            turn.text.extend(burst)
            turn.history.add(burst)
            assert target.read(turn.cache) == tuple(turn.text[:-1])
    assert min(accepted[rule] for rule in ("ratio", "block", "match")) > 0
    for index in (1, 3):  # what the target alone writes
        assert texts[index] == alone_text(target, prompts[index], samplings[index], len(texts[index]))


def alone_text(target, prompt, sampling, length):
    text, history = list(prompt), History(prompt)
    with KVPool(8).open() as cache:
        while len(text) < length:
            (outcome,) = play(target, [Turn(cache, text, history, sampling)])
            text.append(outcome.verdict.token)
            history.add([outcome.verdict.token])
    return text


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_at_temperature_0_every_rule_is_match(target, rule):
    text, history = [40, 41, 42], History([40, 41, 42])
    truth = alone_text(target, text, Sampling(), 7)[3:]
    vocab = target.vocab
    for wrong in range(4):
        tokens = [*truth[:wrong], (truth[wrong] + 1) % 250]
        draft = drawn(tokens, *[np.full(vocab, 1 / vocab)] * len(tokens))
        with KVPool(8).open() as cache:
            (outcome,) = play(target, [Turn(cache, text, history, Sampling(), draft, rule)])
        assert outcome.verdict == Verdict(tuple(range(wrong)), truth[wrong])


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_draft_that_was_not_drawn_is_judged_by_match(target, rule):
    text, history = [40, 41, 42], History([40, 41, 42])
    truth = alone_text(target, text, SAMPLING, 7)[3:]
    with KVPool(8).open() as cache:
        (outcome,) = play(target, [Turn(cache, text, history, SAMPLING, Draft.chain(truth[:3]), rule)])
    assert outcome.verdict == Verdict((0, 1, 2), truth[3])
