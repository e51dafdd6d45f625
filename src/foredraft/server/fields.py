"""What the bodies of completions and of chats have in common.

Types are strict, and null is as good as left out. A field that is not known here is refused by name, so that
nobody believes it did something.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from foredraft.core.rules import Rule
from foredraft.core.sampling import MAX_SEED, Sampling
from foredraft.engine.drafting import MODEL, MODEL_FREE, SCRATCH_ROWS, Drafting
from foredraft.errors import UsageError
from foredraft.server.errors import ApiError

MAX_COUNT = 2**31 - 1
MAX_FACTOR = 1e6
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_IDS = 1024
MAX_BIASES = 1024
MAX_SALT = 1024  # characters: each cached block holds them
MAX_LOGPROBS = 20

# Fields that name a grammar, beside response_format.
GRAMMARS = (
    "structured_outputs",
    "json_schema",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "regex",
    "ebnf",
)
# Accepted, and nothing is done about them: they cannot alter the text.
IGNORED = (
    "cache_prompt",
    "metadata",
    "priority",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
# Accepted with null and with these values only, which ask for nothing.
IDLE: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "audio": (),
        "function_call": ("none",),
        "functions": (),
        "include_stop_str_in_output": (False,),
        "length_penalty": (1, 1.0),
        "modalities": (["text"],),
        "moderation": (),
        "prompt_logprobs": (),
        "reasoning_effort": ("none",),
        "spaces_between_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
        "verbosity": ("medium",),
        "web_search_options": (),
    }
)
IDLE_IN_CHATS: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {**IDLE, "best_of": (1,), "echo": (False,), "suffix": ()}
)
IDLE_IN_COMPLETIONS: Mapping[str, tuple[object, ...]] = MappingProxyType({**IDLE, "suffix": ("",)})


def _harmless(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    """Tell the document of the fields that the models do not have."""
    idle: Mapping[str, tuple[object, ...]] = getattr(kind, "IDLE", {})
    for name in IGNORED if idle else ():
        schema["properties"][name] = {"description": "Accepted; does nothing."}
    for name, values in idle.items():
        schema["properties"][name] = {"enum": [None, *values], "description": "Asks for nothing."}


class Strict(BaseModel):
    """No other fields, no other types, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = Field(None, description="Accepted; chunks are never padded.")


class Speculation(Strict):
    """How the answer is drafted for. The text is the same, whatever is said here."""

    drafter: str = "auto"
    k: Annotated[int, Field(ge=0, le=SCRATCH_ROWS)] | None = None
    rule: Rule = "match"


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Prediction(Strict):
    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)


TokenId = Annotated[int, Field(ge=0, le=MAX_COUNT)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Limit = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Penalty = Annotated[float, Field(ge=-MAX_FACTOR, le=MAX_FACTOR)]
StopString = Annotated[str, Field(min_length=1)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


def _few(value: object) -> object:
    """Before they are looked at one by one: what is wrong with each takes long to say."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"has {len(value)} entries; {MAX_BIASES} at most are taken")
    return value


Biases = Annotated[dict[TokenKey, Penalty], BeforeValidator(_few), Field(max_length=MAX_BIASES)]


class Shared(Strict):
    """The fields of both."""

    model_config = ConfigDict(json_schema_extra=_harmless)
    IDLE: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    model: str
    temperature: Annotated[float, Field(ge=0, le=MAX_FACTOR)] | None = Field(
        None, description="1 if not given."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = Field(None, description="0 and -1: off.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1 / MAX_FACTOR, le=MAX_FACTOR)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = Field(
        None, description="Choice i has seed + i. -1: drawn. Others below 0 count from 2^64 downwards."
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = Field(None, description="true if not given.")
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = Field(
        None, description="Prefixes are reused among requests of the same salt."
    )
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: str | dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    prediction: Prediction | None = None
    speculation: Literal["off", "auto"] | Speculation | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def grammars(self) -> dict[str, Any]:
        """The fields that name a grammar, without `response_format`."""
        return {name: value for name in GRAMMARS if (value := getattr(self, name)) is not None}

    def check(self) -> None:
        """What concerns more than one field."""
        if self.stream_options is not None and not self.streams:
            raise ApiError(400, "stream_options is given, but stream is not true", param="stream_options")

    def sampling(self, most: int, choice: int) -> Sampling:
        """Of one of the choices."""
        stop = self.stop or ()
        return Sampling(
            temperature=or_else(self.temperature, 1.0),
            top_k=max(0, self.top_k or 0),
            top_p=or_else(self.top_p, 1.0),
            min_p=self.min_p or 0.0,
            repetition_penalty=or_else(self.repetition_penalty, 1.0),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            seed=None if self.seed in (None, -1) else (self.seed + choice) % (MAX_SEED + 1),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            max_tokens=most,
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
        )

    def drafting(self, default: Drafting, models: frozenset[str]) -> Drafting | None:
        """How to draft; None: as the server does. `models` are the drafters of this kind that may be named: a
        client must not have files loaded.
        """
        asked = self.speculation
        prediction = None if self.prediction is None else self.prediction.text
        if asked is None:
            return None if prediction is None else _predicting(default, prediction)
        if isinstance(asked, str):
            asked = Speculation(drafter=asked)
        rule: Rule = "match" if asked.drafter == "off" else asked.rule
        prediction = None if asked.drafter == "off" else prediction  # to compare, one field is enough
        try:
            drafting = Drafting(asked.drafter, asked.k, rule, prediction)
        except UsageError as error:
            raise ApiError(400, f"speculation: {error}", param="speculation") from None
        if "auto" in drafting.names and "auto" not in default.names:
            drafting = replace(drafting, drafter=_expanded(drafting, models))
        for name in drafting.names:
            if name.startswith(MODEL) and name not in models:
                there = ", ".join(sorted(models)) or "none"
                raise ApiError(
                    400,
                    f"speculation: the draft model of {name!r} is not loaded; loaded are: {there}. The "
                    "server loads those that it is started with (-d).",
                    param="speculation",
                )
        return drafting


def or_else(value: float | None, default: float) -> float:
    return default if value is None else value


def _expanded(drafting: Drafting, models: frozenset[str]) -> str:
    """Without auto, which would load a model that nobody loaded when the server was started."""
    auto = [*(["prediction"] if drafting.prediction is not None else []), *MODEL_FREE, *sorted(models)]
    names = [part for name in drafting.names for part in (auto if name == "auto" else [name])]
    return "+".join(dict.fromkeys(names))


def _predicting(default: Drafting, prediction: str) -> Drafting:
    """The server's own way, and the prediction."""
    if default.is_off:
        return Drafting("prediction", prediction=prediction)
    names = default.names
    drafter = default.drafter if {"auto", "prediction"} & set(names) else f"prediction+{default.drafter}"
    return Drafting(drafter, default.k, default.rule, prediction)
