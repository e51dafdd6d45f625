import pytest

from foredraft.core.history import History
from foredraft.core.nouns import Draft, Rows, int32s
from foredraft.core.pick import Place
from foredraft.core.round import Turn, play
from foredraft.core.sampling import Sampling
from foredraft.engine.kv import KVPool
from foredraft.measure.prices import Prices
from foredraft.measure.replay import Recording, ReplayTarget, VirtualClock

RECORDING = Recording((5, 6), (7, 0, 1, 9))
PRICES = Prices({1: 1.0, 2: 1.5, 4: 3.0})


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def target(clock):
    return ReplayTarget(RECORDING, PRICES, clock, vocab=10)


def picks(target, *places):
    return target.pick(None, [Place(Sampling(), position, path=path) for position, path in places])


def test_the_recorded_token_follows_the_recorded_text(target):
    assert picks(target, (2, ()), (3, ()), (5, ())) == [7, 0, 9]


def test_the_recorded_token_follows_a_path_that_is_the_recorded_text(target):
    assert picks(target, (3, (7,)), (4, (7, 0)), (5, (0, 1))) == [0, 1, 9]


def test_another_path_is_followed_by_another_token(target):
    """0, or 1 where the recording has 0."""
    assert picks(target, (3, (8,)), (4, (8, 0)), (4, (7, 8)), (5, (7, 0, 0))) == [1, 0, 0, 0]


def test_beyond_the_recording_there_is_something_to_pick(target):
    assert picks(target, (6, (9,)), (9, ())) == [0, 0]


def test_a_pass_takes_what_its_rows_cost(target, clock):
    pool = KVPool(1)
    with pool.open() as cache:
        scores = target.forward(Rows.chain([5, 6]), [cache], int32s([1]))
        assert scores.logits.shape == (1, 10)
        assert clock() == 1.5
        target.keep(cache, [0, 1])
        assert cache.length == 2
        target.forward(Rows.chain([7]), [cache], int32s([0]))
        assert clock() == 2.5


def test_rounds_follow_the_recording_whatever_is_drafted(target):
    pool = KVPool(1)
    text = [5, 6]
    drafts = [Draft.chain([7, 0, 2]), Draft((3, 9), (-1, -1)), Draft.empty]
    with pool.open() as cache:
        for draft in drafts:
            turn = Turn(cache, list(text), History(), Sampling(), draft)
            (outcome,) = play(target, [turn])
            text += outcome.verdict.burst(draft)
    # Two accepted and the bonus token; then the second branch and a token beyond the end; then one more.
    assert text[:6] == [5, 6, 7, 0, 1, 9]
    assert len(text) == 8
