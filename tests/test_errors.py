import inspect

import pytest

import foredraft
from foredraft import errors


def test_every_error_is_in_the_tree_of_the_docstring_and_public():
    classes = [item for _, item in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) >= 10
    for item in classes:
        assert issubclass(item, errors.ForedraftError)
        assert item.__name__ in (errors.__doc__ or "")
        assert getattr(foredraft, item.__name__) is item


def test_an_error_is_its_message():
    with pytest.raises(errors.ForedraftError, match="what, the value"):
        raise errors.UsageError("what, the value")
