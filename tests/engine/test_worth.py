"""A drafter that takes time is asked as long as that pays."""

from itertools import pairwise

import pytest

from foredraft.engine.worth import FORGIVENESS, HOPE, NEGLIGIBLE, Worth

RATE = 20.0  # tokens per second


def rounds(worth, gains, value=0.0, catch_up_s=0.0, left=100.0):
    """In which of these rounds it was asked, where asking would bring these gains."""
    asked = []
    for gain in gains:
        asked.append(worth.pays(value, RATE, catch_up_s, left))
        if asked[-1]:
            worth.note(value, gain)
        else:
            worth.skip(value)
        worth.settle(gain if asked[-1] else 0.0)
    return asked


def test_it_is_tried_before_anything_is_known():
    assert Worth().pays(0.0, RATE, 0.0, 1.0)


def test_who_takes_no_time_to_speak_of_is_always_asked():
    worth = Worth()
    assert worth.is_negligible(RATE)
    worth.note_time(0.5 * NEGLIGIBLE / RATE)
    assert worth.is_negligible(RATE)
    assert not worth.is_negligible(3 * RATE)
    for _ in range(30):
        worth.note_time(2 * NEGLIGIBLE / RATE)
    assert not worth.is_negligible(RATE)


def test_one_that_brings_nothing_is_soon_left_out():
    asked = rounds(Worth(), [-1.0] * 300)
    assert asked[0]
    assert sum(asked) <= 6
    assert not any(asked[10:60])


def test_it_loses_no_more_than_a_few_tokens_and_a_small_share_of_the_rounds():
    """However its worth seems to rise and fall: here every estimate is good, and every outcome is bad."""
    worth, lost = Worth(), 0.0
    for _ in range(2000):
        if worth.pays(0.0, RATE, 0.0, 100.0):
            worth.note(0.0, 1.0)
            worth.settle(-0.5)
            lost += 0.5
        else:
            worth.skip(0.0)
            worth.settle(0.0)
    assert 0.0 < lost < 4.0 + 0.006 * 2000


def test_one_that_brings_something_is_asked_on():
    assert all(rounds(Worth(), [0.4] * 100))
    assert all(rounds(Worth(), [2.0, -0.5] * 50))


def test_it_is_forgiven_slowly_and_comes_back():
    worth = Worth()
    rounds(worth, [-0.5] * 20)
    asked = rounds(worth, [1.0] * 1500)
    first = asked.index(True)
    assert first > 0.2 / FORGIVENESS
    assert all(asked[first:])


def test_each_time_in_vain_it_waits_longer():
    asked = rounds(Worth(), [-0.3] * 4000)
    returns = [at for at, now in enumerate(asked) if now and not asked[at - 1]]
    gaps = [later - earlier for earlier, later in pairwise(returns)]
    assert len(gaps) >= 2
    assert gaps == sorted(gaps)


def test_what_it_is_worth_depends_on_what_the_others_have_found():
    worth = Worth()
    for _ in range(20):
        worth.note(0.0, 1.0)
        worth.note(5.0, -1.0)
    assert worth.pays(0.05, RATE, 0.0, 100.0)
    assert not worth.pays(6.0, RATE, 0.0, 100.0)


@pytest.mark.parametrize("catch_up_s", [0.01, 0.1])
def test_catching_up_must_be_earned_in_the_rounds_that_are_left(catch_up_s):
    worth = Worth()
    needed = catch_up_s * RATE / HOPE
    assert worth.pays(0.0, RATE, catch_up_s, needed * 1.01)
    assert not worth.pays(0.0, RATE, catch_up_s, needed * 0.99)


def test_a_long_way_to_catch_up_is_not_gone_on_a_mere_hope():
    assert not Worth().pays(0.0, RATE, 1000.0, 1e9)
