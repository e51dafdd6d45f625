import re

import pytest

from foredraft.errors import ModelNotFoundError
from foredraft.models.registry import KNOWN, REGISTRY, look_up


def test_names_and_hashes_are_unique_and_well_formed():
    assert len(REGISTRY) == len(KNOWN) == len({entry.sha256 for entry in KNOWN})
    for entry in KNOWN:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert re.fullmatch(r"[a-z0-9.-]+", entry.name)
        assert entry.num_bytes > 0
        assert entry.licence
        assert entry.hub or entry.wheels


def test_every_wheel_is_pinned_and_comes_once():
    requirements = [part.requirement for entry in KNOWN for part in entry.wheels]
    assert len(requirements) == len(set(requirements)) == 33
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", requirement) for requirement in requirements)


def test_an_unknown_name_gets_the_nearest_and_the_known_ones():
    with pytest.raises(ModelNotFoundError) as caught:
        look_up("Qwen2.5-coder-1.5")
    text = str(caught.value)
    assert "did you mean 'qwen2.5-coder-1.5b'?" in text
    assert all(name in text for name in REGISTRY)


def test_a_name_like_no_other_gets_no_guess():
    with pytest.raises(ModelNotFoundError) as caught:
        look_up("zzz")
    assert "did you mean" not in str(caught.value)


def test_named_drafters_are_known_and_smaller():
    named = {entry.name: entry.drafter for entry in KNOWN if entry.drafter}
    assert named == {"qwen2.5-coder-1.5b": "qwen2.5-coder-0.5b"}
    for target, drafter in named.items():
        assert REGISTRY[drafter].num_bytes < REGISTRY[target].num_bytes
        assert REGISTRY[drafter].drafter is None
