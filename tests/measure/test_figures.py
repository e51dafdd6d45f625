from dataclasses import replace

import pytest

from foredraft.measure.figures import FIGURES, Goal, Measured, figures_of, row_limit
from foredraft.measure.settings import Settings
from foredraft.measure.stats import summarise

SETTINGS = Settings()
# A machine of 50 GB/s, a file of 1.1 GB of which a token reads 1 GB, a pass of one row in 22 ms.
SAMPLES = {
    "bandwidth_gb_s": [48.0, 50.0, 49.0, 47.0, 46.0],
    "pass_s 1@128": [0.022, 0.022, 0.02],
    **{f"pass_s {rows}@512": [0.022, 0.022 * 1.5, 0.022] for rows in (1, 2, 3, 4, 6)},
    "pass_s 8@512": [0.030, 0.045, 0.030],
    "pass_s 12@512": [0.040] * 3,
    "pass_s 16@512": [0.066] * 3,
    "pass_s 32@512": [0.090] * 3,
    "pass_s 1@4000": [0.026] * 3,
    "pass_s 8@4000": [0.052] * 3,
    "pick_s": [0.0015, 0.0015, 0.0014],
    "free_s": [0.022] * 3,
    "taken_s": [0.044] * 3,
    "tok_s": [44.0, 44.0],
    "peer_tok_s": [40.0, 44.0],
    "prompt_tok_s": [300.0, 320.0],
    "peer_prompt_tok_s": [150.0, 160.0],
    "overhead_s": [0.0001, 0.0003, 0.00015],
    "load_s": [3.0, 5.0, 3.5],
    "peak_bytes": [1.54e9],
}
MEASURED = Measured(SETTINGS, SAMPLES, weight_bytes=10**9, file_bytes=11 * 10**8)


def only(name, measured=MEASURED):
    return figures_of(measured, [name])


def value(name):
    (figure,) = only(name)
    return figure.summary.median, None if figure.goal is None else str(figure.goal), figure.met


@pytest.mark.parametrize(
    ("name", "expected", "goal", "met"),
    [
        ("bandwidth", 48.0, None, None),
        ("share", 1 / 0.022 / 50, "≥ 0.9", True),
        ("generation", (1.1 + 1.0) / 2, "≥ 1.15", False),
        ("rows-long", 2.0, "≤ 2", True),
        ("context", 0.026 / 0.022, "≤ 1.3", True),
        ("prompt", 2.0, "≥ 1.8", True),
        ("pick", 0.0014 / 0.030, "≤ 0.05", True),
        ("taken-core", 2.0, "≤ 2.5", True),
        ("overhead", 0.15, "≤ 0.2", True),
        ("load", 3.5, "≤ 4", True),
        ("memory", 1.4, "≤ 1.45", True),
    ],
)
def test_figure_is_what_its_definition_says(name, expected, goal, met):
    assert value(name) == (pytest.approx(expected), goal, met)


def test_rows_are_compared_round_by_round():
    figures = {figure.title: figure for figure in only("rows")}
    assert list(figures) == [f"pass of {rows} rows ÷ 1, context 512" for rows in (2, 3, 4, 6, 8, 12, 16, 32)]
    eight = figures["pass of 8 rows ÷ 1, context 512"]
    assert eight.summary.median == pytest.approx(0.030 / 0.022)
    assert eight.summary.high == pytest.approx(0.030 / 0.022)  # the slow round was slow for both
    assert (str(eight.goal), eight.met) == ("≤ 1.5", True)
    assert figures["pass of 16 rows ÷ 1, context 512"].met is False
    assert figures["pass of 32 rows ÷ 1, context 512"].goal is None


def test_limits_rise_with_the_bandwidth_beyond_60():
    assert [row_limit(rows, 40.0) for rows in (6, 8, 16)] == [1.25, 1.5, 2.5]
    assert [row_limit(rows, 60.0) for rows in (6, 8, 16)] == [1.25, 1.5, 2.5]
    assert [row_limit(rows, 82.0) for rows in (6, 8, 16)] == pytest.approx([1.5, 2.1, 3.3])
    assert row_limit(8, 71.0) == pytest.approx(1.8)


def test_without_a_peer_rates_are_only_told():
    ours = {key: samples for key, samples in SAMPLES.items() if not key.startswith("peer")}
    for name, unit_value in (("generation", 44.0), ("prompt", 310.0)):
        (figure,) = only(name, replace(MEASURED, samples=ours))
        assert (figure.summary.median, figure.unit, figure.goal, figure.met) == (
            unit_value,
            "tokens/s",
            None,
            None,
        )


def test_goals_hold_for_the_default_settings_only():
    other = replace(MEASURED, settings=replace(SETTINGS, passes=5))
    assert {figure.met for figure in figures_of(other, list(FIGURES))} == {None}


def test_every_name_gives_its_own_figures_in_the_table_s_order():
    names = [figure.name for figure in figures_of(MEASURED, list(reversed(FIGURES)))]
    assert list(dict.fromkeys(names)) == list(FIGURES)


@pytest.mark.parametrize(("goal", "met", "missed"), [(Goal(2.0), 2.0, 2.01), (Goal(0.9, True), 0.9, 0.89)])
def test_goal_may_be_reached_exactly(goal, met, missed):
    assert goal.met_by(met)
    assert not goal.met_by(missed)


def test_the_median_decides():
    assert summarise([0.1, 9.0, 0.1]).median == 0.1
