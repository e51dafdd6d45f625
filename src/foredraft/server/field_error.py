"""Fields of a request that are not as they should be."""

import reprlib
from collections.abc import Mapping, Sequence

from foredraft.errors import UsageError


class FieldError(UsageError):
    """`param` is the field's path, such as `messages[2].content[0]`, as OpenAI's errors name it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def fields_of(value: object, path: str, known: Sequence[str]) -> Mapping[str, object]:
    """The fields of an object, none but known ones. One that is null is as good as absent."""
    if not isinstance(value, Mapping):
        raise FieldError(f"{path} is {shown(value)}; an object is expected", path)
    for key, item in value.items():
        if key not in known and item is not None:
            place = f"{path}.{key if str(key).isidentifier() else shown(key)}"
            raise FieldError(f"{place} is not supported; {', '.join(known)} are known there", place)
    return {key: item for key, item in value.items() if item is not None}


def shown(value: object) -> str:
    """A value for a message: not all of it, however long or deep it is."""
    return reprlib.repr(value)
