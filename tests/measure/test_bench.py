import sys
from pathlib import Path

import pytest
from tiny import write_tiny

from foredraft.errors import UsageError
from foredraft.measure.bench import Order, bench
from foredraft.measure.figures import FIGURES
from foredraft.measure.machine import field
from foredraft.measure.settings import Settings

SMALL = Settings(rows=(1, 2, 8), sweep_bytes=1 << 22)
# Answers as llama-bench does, with a rate that tells which of its tests was run.
PEER = f"""#!{sys.executable}
import json, sys
asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
numbers = {{"n_threads": "-t", "n_prompt": "-p", "n_gen": "-n", "n_depth": "-d"}}
test = {{name: int(asked[option]) for name, option in numbers.items()}}
rate = 50.0 if test["n_gen"] else 200.0
print(json.dumps([test | {{"samples_ts": [rate], "build_number": 1, "build_commit": "fake"}}]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("bench") / "tiny.gguf", "qwen2", seed=5, context=512)


@pytest.fixture
def peer(tmp_path):
    path = tmp_path / "llama-bench"
    path.write_text(PEER)
    path.chmod(0o755)
    return path


def test_everything_is_measured_beside_a_peer(model, peer):
    said = []
    result = bench(Order(model, threads=1, repeat=6, peer=peer, settings=SMALL), said.append)
    samples, settings = result.measured.samples, result.measured.settings
    assert settings == SMALL.fitted(512)
    counts = {key: len(values) for key, values in samples.items()}
    passes = [f"pass_s {rows}@{settings.middle}" for rows in SMALL.rows]
    passes += [f"pass_s 1@{settings.short}", f"pass_s 1@{settings.long}", f"pass_s 8@{settings.long}"]
    assert counts == {
        "bandwidth_gb_s": 6,
        **dict.fromkeys([*passes, "pick_s", "free_s", "taken_s"], 6),
        **dict.fromkeys(["tok_s", "prompt_tok_s", "peer_tok_s", "peer_prompt_tok_s", "load_s"], 2),
        "overhead_s": 2 * (settings.generated - 1),
        "peak_bytes": 1,
    }
    assert all(value > 0 for key, values in samples.items() if key != "overhead_s" for value in values)
    assert samples["peer_tok_s"] == [50.0, 50.0]
    assert samples["peer_prompt_tok_s"] == [200.0, 200.0]
    assert list(dict.fromkeys(figure.name for figure in result.figures)) == list(FIGURES)
    assert result.peer_build == "1 (fake)"
    assert result.measured.file_bytes == model.stat().st_size
    assert "passes: round 6 of 6" in said


def test_bandwidth_has_at_least_five_sweeps(model):
    result = bench(Order(model, threads=1, repeat=1, only=("share",), settings=SMALL), print)
    assert {key: len(values) for key, values in result.measured.samples.items()} == {
        "bandwidth_gb_s": 5,
        f"pass_s 1@{result.measured.settings.short}": 1,
    }


def test_only_what_is_asked_for_is_measured(model):
    result = bench(Order(model, threads=1, repeat=2, only=("context", "prompt"), settings=SMALL), print)
    assert {key.split(" ")[0] for key in result.measured.samples} == {"pass_s", "prompt_tok_s"}
    assert [figure.name for figure in result.figures] == ["context", "prompt"]
    assert result.peer_build is None


def test_memory_is_given_back_before_fresh_processes_are_measured(model):
    """Else a model that fills most of the memory could not be loaded a second time."""
    held = {}

    def watch(text):
        held[text] = int(field(Path("/proc/self/status").read_text(), "VmRSS").split()[0]) >> 10

    settings = Settings(sweep_bytes=256 << 20)
    bench(Order(model, threads=1, repeat=2, only=("bandwidth", "load"), settings=settings), watch)
    assert held["loading in a fresh process: 1 of 1"] < held["passes: round 2 of 2"] - 250


@pytest.mark.parametrize("only", [("rows", "speed"), ("",), ("Rows",)])
def test_unknown_figure_is_refused_with_the_names_there_are(model, only):
    with pytest.raises(UsageError, match=r"no figure .*There are: bandwidth, share, generation"):
        Order(model, only=only)


def test_misspelt_figure_gets_the_nearest_name(model):
    with pytest.raises(UsageError, match="did you mean overhead"):
        Order(model, only=("overhed",))


@pytest.mark.parametrize("change", [{"repeat": 0}, {"threads": -1, "only": ("overhead",)}])
def test_senseless_numbers_are_refused(model, change):
    with pytest.raises(UsageError):
        bench(Order(model, **change), print)
