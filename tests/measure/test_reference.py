import importlib.util
import json
from pathlib import Path

import pytest

from foredraft.measure.prices import Prices
from foredraft.measure.reference import Contexts, Replayed, accepted, replay

FREE = Prices({1: 1.0, 2: 1.0})
DEAR = Prices({1: 1.0, 2: 2.0})
SIMULATION = Path(__file__).parents[3] / "shared" / "design" / "simulation"


def contexts_of(*tokens):
    contexts = Contexts()
    contexts.read(tokens)
    return contexts


def test_orders_are_blended_by_escape_probabilities():
    """By hand: 3 followed (1, 2), so order 2 says 1/2 and leaves 1/2; order 1 leaves 0.7 of it at least."""
    assert contexts_of(1, 2, 3, 1, 2).chances([1, 2]) == {3: pytest.approx(0.5 + 0.5 * 0.3)}


def test_a_context_that_went_on_in_two_ways_is_believed_less():
    """By hand: after 1 came 2 twice and 3 once, so 2 of 5 are left to escape, or 0.7 as for every order 1."""
    chances = contexts_of(1, 2, 1, 3, 1, 2, 9).chances([1])
    assert chances == {2: pytest.approx(0.3 * 2 / 3), 3: pytest.approx(0.3 / 3)}


def test_tree_grows_by_its_likeliest_path_while_it_is_worth_the_price():
    contexts = contexts_of(1, 2, 3, 1, 2)
    # 3 has 0.65; then 1 after (1, 2, 3), (2, 3) and 3: 0.5 + 0.25 + 0.25 * 0.3 = 0.825 of it.
    assert contexts.tree(1, lambda nodes: 0.0) == [(-1, 3)]
    assert contexts.tree(6, lambda nodes: 0.66) == []
    assert contexts.tree(6, lambda nodes: 0.65 * 0.82) == [(-1, 3), (0, 1)]
    assert contexts.tree(6, lambda nodes: 0.6 if nodes == 1 else 0.7) == [(-1, 3)]


def test_a_tree_is_followed_as_far_as_the_output_goes():
    tree = [(-1, 5), (-1, 6), (1, 7), (2, 8)]
    assert accepted(tree, [6, 7, 9]) == 2
    assert accepted(tree, [6, 7]) == 2
    assert accepted(tree, [5, 7]) == 1
    assert accepted(tree, [7]) == 0
    assert accepted(tree, []) == 0


def test_text_without_repetition_is_not_drafted_for():
    assert replay(range(10), range(10, 20), DEAR) == Replayed(1.0, 1.0)


def test_text_that_repeats_itself_gains_what_six_rows_hold():
    """Seven tokens a round: six drafted and the bonus token; rows are free, so it is seven times as fast."""
    found = replay([1, 2, 3, 4] * 5, [1, 2, 3, 4] * 7, FREE)
    assert found == Replayed(pytest.approx(7.0), pytest.approx(7.0))


def test_nothing_is_drafted_where_a_row_costs_a_whole_pass():
    assert replay([1, 2, 3, 4] * 5, [1, 2, 3, 4] * 7, DEAR) == Replayed(
        pytest.approx(1.0), pytest.approx(1.0)
    )


@pytest.mark.skipif(not SIMULATION.is_dir(), reason="the simulation that this policy comes from is not here")
def test_recorded_outputs_come_to_what_the_simulation_says():
    spec = importlib.util.spec_from_file_location("simulate", SIMULATION / "simulate.py")
    simulate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulate)
    prices = Prices({rows: simulate.cost(rows) for rows in range(1, 9)})
    runs = json.loads((SIMULATION / "peer_outputs.json").read_text())
    for run in runs:
        prompt, output = run["prompt_ids"], run["output_ids"]
        expected = Replayed(*simulate.replay(prompt, output, 6, None))
        assert replay(prompt, output, prices) == expected, run["name"]
