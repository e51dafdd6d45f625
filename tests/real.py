"""The real models that tests use where they are in the cache (`make test` fetches SmolLM2)."""

import pytest

from foredraft.models.cache import model_path


def real_model(name):
    """The path of a pulled model, or the test is skipped."""
    path = model_path(name)
    if not path.is_file():
        pytest.skip(f"{name} is not in the cache: foredraft pull {name}")
    return path
