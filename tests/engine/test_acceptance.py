"""What a chance turned out to be worth, counted by hand."""

import math
import random

import pytest

from foredraft.engine.acceptance import EDGES, PRIOR, PROCESS_MEMORY, REQUEST_MEMORY, Acceptance


def test_before_anything_is_known_a_drafter_is_believed():
    for acceptance in (Acceptance(), Acceptance(Acceptance())):
        assert [acceptance("a", chance) for chance in (0.0, 0.37, 1.0)] == [0.0, 0.37, 1.0]


def test_experience_is_counted_beside_what_the_drafter_says():
    acceptance, keep = Acceptance(), math.exp(-1 / PROCESS_MEMORY)
    acceptance.note("a", 0.65, True)
    assert acceptance("a", 0.65) == pytest.approx((1 + PRIOR * 0.65) / (1 + PRIOR))
    acceptance.note("a", 0.61, False)
    acceptance.note("a", 0.69, True)
    right, tried = keep**2 + 1, keep**2 + keep + 1
    assert acceptance("a", 0.66) == pytest.approx((right + PRIOR * 0.66) / (tried + PRIOR))


def test_other_drafters_and_other_chances_are_another_matter():
    acceptance = Acceptance()
    acceptance.note("a", 0.65, False)
    assert acceptance("b", 0.65) == 0.65
    assert acceptance("a", 0.75) == 0.75
    assert acceptance("a", 0.6) < 0.6


def test_a_request_believes_the_process_where_it_has_seen_little():
    process = Acceptance()
    for _ in range(5):
        Acceptance(process).note("a", 0.5, True)
    known = process("a", 0.5)
    assert known > 0.7
    request = Acceptance(process)
    assert request("a", 0.5) == known
    request.note("a", 0.5, False)
    now = process("a", 0.5)
    assert known > now  # the process has learned too
    assert request("a", 0.5) == pytest.approx((0 + PRIOR * now) / (1 + PRIOR))


@pytest.mark.parametrize("above", [False, True], ids=["process", "request"])
def test_what_happens_often_is_believed_in_the_end(above):
    acceptance = Acceptance(Acceptance() if above else None)
    dice = random.Random(1)
    for _ in range(4000):
        acceptance.note("a", 0.9, dice.random() < 0.25)
    assert acceptance("a", 0.9) == pytest.approx(0.25, abs=0.15 if above else 0.05)


def test_a_request_forgets_sooner_than_the_process():
    process = Acceptance()
    request = Acceptance(process)
    for right in [True] * 400 + [False] * int(REQUEST_MEMORY):
        request.note("a", 0.5, right)
    assert request("a", 0.5) < 0.5 < process("a", 0.5)
    for _ in range(int(2 * PROCESS_MEMORY)):
        process.note("a", 0.5, False)
    assert process("a", 0.5) < 0.1


def test_every_chance_has_a_class_and_stays_one():
    acceptance = Acceptance()
    chances = sorted({0.0, 1.0, *EDGES, *(edge - 1e-9 for edge in EDGES)})
    for chance in chances:
        acceptance.note("a", chance, chance > 0.5)
    assert all(0.0 <= acceptance("a", chance) <= 1.0 for chance in chances)
