"""The public names."""

import subprocess
import sys

import pytest

import foredraft


def test_all_is_sorted_and_real():
    assert foredraft.__all__ == sorted(foredraft.__all__, key=lambda name: (name != "LLM", name))
    for name in foredraft.__all__:
        assert getattr(foredraft, name) is not None
    assert dir(foredraft) == sorted(foredraft.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        _ = foredraft.LLMs


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("numpy", "tokenizers", "jinja2", "foredraft._native")
    code = f"import sys, foredraft; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
