"""How a request wants to be drafted for."""

import re
from dataclasses import dataclass

from foredraft.core.rules import RULES, Rule
from foredraft.errors import UsageError

SCRATCH_ROWS = 63  # drafted tokens that a pass has room for
MODEL_FREE = ("suffix",)  # of auto: what ngram finds suffix finds too, and judges better (docs/controller.md)
SIMPLE = ("ngram", "suffix", "prediction")
MODEL = "model:"
# A model's path may have a + too: it divides only where a drafter's whole name follows.
NEXT = re.compile(rf"\+(?=(?:off|auto|{'|'.join(SIMPLE)})(?:[+:]|$)|{MODEL})")
KNOWN = "off, auto, ngram, suffix, prediction:FILE, model:NAME, or several joined by +, as in ngram+suffix"


@dataclass(frozen=True)
class Drafting:
    """`drafter` as in `-d`, but without the file of a prediction, whose text is `prediction`. `k` is the
    number of tokens of every draft; None lets the controller decide, in every round anew.
    """

    drafter: str = "auto"
    k: int | None = None
    rule: Rule = "match"
    prediction: str | None = None

    def __post_init__(self) -> None:
        names = self.names
        if len(names) > 1 and ("off" in names or len(set(names)) < len(names)):
            raise UsageError(f"drafter is {self.drafter!r}: off stands alone, and no drafter twice")
        for name in names:
            if name.startswith("prediction:"):
                raise UsageError(
                    f"drafter is {name!r}: here the text is given, not a file (only run and chat read one)"
                )
            if name not in (*SIMPLE, "off", "auto") and not name.startswith(MODEL):
                raise UsageError(f"there is no drafter {name!r}. There are: {KNOWN}")
            if name == MODEL:
                raise UsageError(f"drafter {name!r} names no model; give one, as in model:qwen2.5-coder-0.5b")
        if names == ("off",) and self.rule != "match":
            raise UsageError(
                f"rule is {self.rule!r}, but without drafting there is nothing to judge; leave it out"
            )
        if names == ("off",) and self.k not in (None, 0):
            raise UsageError(
                f"k is {self.k}, but with drafter 'off' nothing is drafted; leave it out, or give 0"
            )
        if self.prediction is not None and not {"prediction", "auto"} & set(names):
            raise UsageError(
                f"a prediction is given, but drafter is {self.drafter!r}; name prediction, or auto"
            )
        if "prediction" in names and self.prediction is None:
            raise UsageError(
                "the drafter prediction needs the predicted text (on the command line prediction:FILE)"
            )
        if self.k is not None and not 0 <= self.k <= SCRATCH_ROWS:
            raise UsageError(
                f"k is {self.k}, but must be 0 (no drafting) to {SCRATCH_ROWS}, or auto (in Python None)"
            )
        if self.rule not in RULES:
            raise UsageError(f"rule is {self.rule!r}, but must be one of {', '.join(RULES)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The drafters that are named, in order."""
        return tuple(NEXT.split(self.drafter))

    @property
    def is_off(self) -> bool:
        return self.names == ("off",) or self.k == 0


OFF = Drafting("off")
