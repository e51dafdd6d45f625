import shutil
import subprocess
from pathlib import Path

import pytest

from foredraft.measure.machine import Others, busy_s, commit, field, load_average, this_machine, versions


def test_field_is_the_first_of_its_name():
    text = "processor\t: 0\nmodel name\t: Some CPU: fast\nmodel name\t: Another\n"
    assert field(text, "model name") == "Some CPU: fast"
    assert field(text, "model") is None


def test_this_machine_is_described():
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes is None or machine.memory_bytes > 1 << 20
    assert machine.kernel
    assert load_average() >= 0
    assert set(versions()) == {"foredraft", "python", "numpy"}


def test_commit_is_that_of_the_checkout_and_of_no_other():
    top = Path(__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (top / ".git").exists():
        pytest.skip("not in a checkout")
    done = subprocess.run([git, "rev-parse", "HEAD"], cwd=top, capture_output=True, text=True)
    if done.returncode:
        assert commit() is None
    else:
        assert (commit() or done.stdout.strip()).removesuffix("-dirty") == done.stdout.strip()


def test_time_of_all_cores_counts_what_the_host_took():
    assert busy_s("cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 1 1 1\n", 100) == pytest.approx(1.71)
    assert busy_s("", 100) == 0.0


def test_others_are_not_ourselves():
    others = Others()
    sum(range(10**6))
    assert others.cores() >= 0.0
