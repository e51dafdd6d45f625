import json
from dataclasses import replace

import pytest

from foredraft.measure.bench import Result
from foredraft.measure.figures import Measured, figures_of
from foredraft.measure.machine import Machine
from foredraft.measure.report import Circumstances, as_json, as_text
from foredraft.measure.settings import Settings

SAMPLES = {
    "bandwidth_gb_s": [48.0, 50.0],
    "pass_s 1@128": [0.02, 0.04, 1 / 30],
    "overhead_s": [0.00015],
}
MEASURED = Measured(Settings(), SAMPLES, weight_bytes=10**9, file_bytes=11 * 10**8)
RESULT = Result(MEASURED, figures_of(MEASURED, ["bandwidth", "share", "overhead"]), "avx2", "11434 (abc)")
RUN = Circumstances(
    model="some-model",
    command=["foredraft", "bench", "-m", "my model"],
    date="2026-01-02T03:04:05+00:00",
    commit=None,
    threads=2,
    machine=Machine("Some CPU", 2, "32768K", 1 << 34, "Linux 6.1 x86_64"),
    versions={"foredraft": "0.1.0"},
    load_average=(0.25, 1.5),
    others_cores=0.02,
)


def test_table_has_every_figure_with_spread_goal_and_verdict():
    head, columns, bandwidth, share, overhead, goals = as_text(RESULT, RUN).splitlines()
    assert head == (
        "some-model: 2 threads, avx2, Some CPU, 2 cores, load average 0.2 before, 1.5 after, "
        "other programs used 0.02 cores, llama.cpp 11434 (abc)"
    )
    assert columns.split() == ["FIGURE", "MEDIAN", "QUARTILES", "N", "GOAL"]
    assert bandwidth.split("  ")[0] == "memory bandwidth"
    assert "49.0 GB/s" in bandwidth
    assert bandwidth.endswith("the best, 50.0, is what the rest is compared to")
    assert share.split()[-7:] == ["≥", "0.9", "MISS", "30.0", "of", "50.0", "GB/s"]
    assert "0.600" in share
    assert "0.550–0.800" in share
    assert "0.150 ms" in overhead
    assert "≤ 0.2 ms" in overhead
    assert "pass" in overhead
    assert goals.startswith("Goals are those of qwen2.5-coder-1.5b")


def test_json_can_be_read_back_and_says_what_was_missed():
    answer = json.loads(json.dumps(as_json(RESULT, RUN)))
    assert answer["command"] == "foredraft bench -m 'my model'"
    assert answer["machine"]["cpu"] == "Some CPU"
    assert answer["peer"] == "llama.cpp 11434 (abc)"
    assert answer["bandwidth_gb_s"] == 50.0
    assert answer["missed"] == ["1 row at context 128: file bytes/s ÷ bandwidth"]
    share = answer["figures"][1]
    assert share["median"] == pytest.approx(0.6)
    assert (share["name"], share["n"], share["goal"], share["met"]) == ("share", 3, "≥ 0.9", False)
    assert "samples" not in answer


def test_raw_samples_give_the_same_figures_again():
    answer = json.loads(json.dumps(as_json(RESULT, RUN, raw=True)))
    settings = Settings(**{**answer["settings"], "rows": tuple(answer["settings"]["rows"])})
    again = Measured(settings, answer["samples"], answer["weight_bytes"], answer["file_bytes"])
    figures = figures_of(again, ["share"])
    assert figures[0].summary.median == pytest.approx(answer["figures"][1]["median"], rel=1e-5)


def test_disturbed_run_says_so():
    assert "do not rely" not in as_text(RESULT, RUN)
    assert "do not rely" in as_text(RESULT, replace(RUN, others_cores=0.5)).splitlines()[-1]
