import json

import pytest
from real import real_model
from tiny import write_tiny

from foredraft.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("prove") / "tiny.gguf", "llama", seed=5))


def test_verdicts_go_to_standard_output_and_json_is_the_last_line(model, capsys):
    assert main(["prove", "-m", model, "-d", "suffix", "--quick", "--json"]) == 0
    captured = capsys.readouterr()
    *verdicts, last = captured.out.splitlines()
    answer = json.loads(last)
    assert answer["holds"] is True
    assert answer["drafter"] == "suffix"
    assert [line.split("  ")[0] for line in verdicts] == ["holds"] * len(answer["claims"])
    for claim in answer["claims"]:
        assert claim["holds"] and claim["checks"] > 0 and claim["failures"] == []
    assert "prove: ids with suffix, k auto" in captured.err


@pytest.mark.parametrize("drafter", ["off", "prediction", "unheard-of"])
def test_a_drafter_is_needed(model, capsys, drafter):
    assert main(["prove", "-m", model, "-d", drafter]) == 2
    assert drafter in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.slow
def test_a_real_model_drafting_for_itself(capsys):
    path = str(real_model("smollm2-135m"))
    assert main(["prove", "-m", path, "-d", f"model:{path}"]) == 0
