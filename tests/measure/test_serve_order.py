from collections import Counter
from itertools import islice

import pytest

from foredraft.errors import UsageError
from foredraft.measure.prompts import KINDS, Prompt, own_prompts
from foredraft.measure.serve_order import AUTO, OFF, Asks, Pace, ServeOrder, Sizes

PROMPTS = (
    Prompt("code", "a", "aaa"),
    Prompt("code", "b", "b"),
    Prompt("chat", "c", "cc"),
    Prompt("code", "d", "dddd"),
)


def order(**changes):
    return ServeOrder(**{"model": "m", "prompts": PROMPTS, "threads": 1} | changes)


def names(prompts):
    return "".join(prompt.name for prompt in prompts)


def test_mix_has_one_prompt_of_each_kind_and_moves_on():
    assert [names(order().mix(number)) for number in range(4)] == ["ac", "bc", "dc", "ac"]
    assert names(order().every()) == "acbd"
    assert names(order().short()) == "b"


def test_every_number_at_once_has_the_same_prompts_in_the_same_proportion():
    asked = ServeOrder("m", own_prompts())
    for number in range(asked.repeat):
        for at_once in asked.requests:
            prompts = asked.measured(at_once, number)
            assert Counter(prompt.kind for prompt in prompts) == dict.fromkeys(KINDS, len(prompts) // 6)
            assert set(prompts) == set(asked.mix(number))
            assert len(prompts) >= at_once
    assert [len(asked.measured(at_once, 0)) for at_once in (1, 4, 5, 16, 32)] == [6, 6, 12, 24, 42]
    assert {prompt for number in range(5) for prompt in asked.mix(number)} == set(own_prompts())


def test_each_side_comes_first_as_often_as_the_other():
    asked = order(repeat=4)
    firsts = Counter(asked.turns(number, index)[0] for number in range(4) for index in range(6))
    assert firsts == {OFF: 12, AUTO: 12}
    assert asked.turns(0, 0) == (OFF, AUTO)
    assert asked.turns(0, 1) == asked.turns(1, 0) == (AUTO, OFF)


def test_long_prompts_shrink_with_the_context():
    assert Sizes().fitted(4096) == Sizes().fitted(2064) == Sizes()
    small = Sizes().fitted(512)
    assert (small.long, small.prefix, small.tail) == (448, 336, 7)
    assert small.exact == 64
    assert small.prefix + 2 * small.tail < 512


def test_requests_of_one_prompt_share_no_salt():
    asks = Asks("a model", 9)
    bodies = [ask.body for ask in islice(asks.endless(PROMPTS[:1], AUTO, max_tokens=3), 3)]
    bodies.append(asks.tokens("ids", [1, 2], OFF).body)
    assert len({body["cache_salt"] for body in bodies}) == 4
    assert [body["speculation"] for body in bodies] == [AUTO, AUTO, AUTO, OFF]
    assert [body["max_tokens"] for body in bodies] == [3, 3, 3, 9]
    assert bodies[0]["messages"] == [{"role": "user", "content": "aaa"}]
    assert bodies[3]["prompt"] == [1, 2]


def test_time_that_all_takes():
    pace = Pace(token_s=0.1, prompt_token_s=0.01, prompt_tokens=100)
    # Alone an answer takes 1 s of reading and 2 s of writing; among 6 a token takes twice the time for six.
    asked = order(max_tokens=20, repeat=3, requests=(1, 6), parts=("throughput",))
    alone, crowd = 2 * 3.0, (8 + 6) * (1 + 20 * 0.2 / 6)
    assert pace.minutes(asked, Sizes()) == pytest.approx(2 * 3 * (alone + crowd) / 60)
    prefix = order(repeat=3, parts=("prefix",))
    assert pace.minutes(prefix, Sizes()) == pytest.approx(2 * 3 * 15 / 60)
    exact = pace.minutes(order(repeat=3, parts=("exact",)), Sizes())
    assert exact == pace.minutes(order(repeat=1, parts=("exact",)), Sizes())  # once, however often the rest
    assert pace.minutes(order(), Sizes()) > exact


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"repeat": 0}, "repeat is 0"),
        ({"max_tokens": 1}, "max_tokens is 1"),
        ({"requests": ()}, "different numbers"),
        ({"requests": (1, 0)}, "--requests 1,0"),
        ({"requests": (4, 4)}, "--requests 4,4"),
        ({"parts": ("speed",)}, "no part 'speed'"),
        ({"prompts": ()}, "no prompts"),
    ],
)
def test_wrong_order_is_refused(changes, complaint):
    with pytest.raises(UsageError, match=complaint):
        order(**changes)
