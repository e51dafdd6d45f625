"""The counters of `/metrics`, and what they come to between two readings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PREFIX = "foredraft:"


@dataclass(frozen=True)
class Counts:
    """By name and labels, as in the text."""

    values: Mapping[tuple[str, str], float]

    @classmethod
    def parse(cls, text: str) -> "Counts":
        found = SAMPLE.findall(text)
        return cls({(name, labels): float(value) for name, labels, value in found})

    def since(self, before: "Counts") -> "Counts":
        return Counts({key: value - before.values.get(key, 0.0) for key, value in self.values.items()})

    def total(self, name: str) -> float:
        """Over all labels. A name that is not there is a mistake of ours: KeyError."""
        found = [value for (one, _), value in self.values.items() if one == PREFIX + name]
        if not found:
            raise KeyError(name)
        return sum(found)

    def by(self, name: str, label: str) -> dict[str, float]:
        """By the values of one label; those that are 0 are left out."""
        found: dict[str, float] = {}
        for (one, labels), value in self.values.items():
            if one == PREFIX + name and value:
                key = dict(LABEL.findall(labels))[label]
                found[key] = found.get(key, 0.0) + value
        return found


@dataclass(frozen=True)
class Passes:
    """What the server counted during a run."""

    passes: float
    rows: float
    prompt_rows: float
    rounds: float
    tokens: float
    drafts: float
    drafted: float
    accepted: float
    preempted: float
    pass_s: float
    draft_s: float
    host_s: float
    reasons: Mapping[str, float]  # rounds without a draft
    by_drafter: Mapping[str, tuple[float, float]]  # drafted, accepted

    @classmethod
    def of(cls, counts: Counts) -> "Passes":
        drafted = counts.by("spec_decode_drafter_draft_tokens_total", "drafter")
        accepted = counts.by("spec_decode_drafter_accepted_tokens_total", "drafter")
        return cls(
            passes=counts.total("rows_per_pass_count"),
            rows=counts.total("rows_per_pass_sum"),
            prompt_rows=counts.total("prompt_rows_total"),
            rounds=counts.total("spec_decode_num_rounds_total"),
            tokens=counts.total("generation_tokens_total"),
            drafts=counts.total("spec_decode_num_drafts_total"),
            drafted=counts.total("spec_decode_num_draft_tokens_total"),
            accepted=counts.total("spec_decode_num_accepted_tokens_total"),
            preempted=counts.total("num_preemptions_total"),
            pass_s=counts.total("pass_seconds_total"),
            draft_s=counts.total("draft_seconds_total"),
            host_s=counts.total("host_seconds_total"),
            reasons=counts.by("spec_decode_num_rounds_without_draft_total", "reason"),
            by_drafter={name: (number, accepted.get(name, 0.0)) for name, number in drafted.items()},
        )
