"""From a body's bytes to its fields, or to an error that says which field is wrong, and why."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from foredraft.server.errors import ApiError
from foredraft.server.fields import IGNORED

SHOWN = 80  # characters of a wrong value in a message

B = TypeVar("B", bound=BaseModel)


def parse(kind: type[B], data: bytes) -> B:
    """A body of this kind. Fields that do nothing are dropped on the way."""
    try:
        raw = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body is {_shown(raw)}, but must be a JSON object", code="invalid_json")
    idle: Mapping[str, tuple[object, ...]] = getattr(kind, "IDLE", {})
    if idle:
        _drop_harmless(raw, idle)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise _refusal(error, raw) from None


def _drop_harmless(raw: dict[str, Any], idle: Mapping[str, tuple[object, ...]]) -> None:
    for name in IGNORED:
        raw.pop(name, None)
    for name in idle.keys() & raw.keys():
        value = raw.pop(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in idle[name]):
            allowed = " or ".join(["null", *map(_shown, idle[name])])
            message = f"{name} is {_shown(value)}, but is not supported: only {allowed} is accepted"
            raise ApiError(400, message, param=name, code="unsupported_parameter")


def _refusal(error: ValidationError, raw: dict[str, Any]) -> ApiError:
    """Of the first field that is wrong."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    place = faults[0]["loc"]
    name = str(place[0]) if place else ""
    if faults[0]["type"] == "extra_forbidden" and len(place) == 1:
        message = f"{_shown(name)} is not a field here, or is not supported; leave it out"
        return ApiError(400, message, param=name, code="unknown_parameter")
    if faults[0]["type"] == "missing" and len(place) == 1:
        return ApiError(400, f"{name} is missing; it is required", param=name, code="missing_parameter")
    own = [fault for fault in faults if fault["loc"][:1] == place[:1]]
    message = f"{name} is {_shown(raw.get(name))}, but {_reasons(own)}"
    return ApiError(400, message, param=name, code="invalid_value")


def _reasons(faults: Sequence[ErrorDetails]) -> str:
    """Each once, and of a part that has a name with it."""
    reasons: dict[str, None] = {}
    for fault in faults:
        last = fault["loc"][-1]
        where = (
            f"{last}: " if len(fault["loc"]) > 1 and fault["type"] in ("extra_forbidden", "missing") else ""
        )
        text = fault["msg"].removeprefix("Input ").rstrip(".")
        reasons[where + text[:1].lower() + text[1:]] = None
    return ", or ".join(list(reasons)[:4])


def _shown(value: object) -> str:
    """As JSON has it, but not all of a long one."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
