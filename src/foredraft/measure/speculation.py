"""`foredraft bench --speculation`: the same prompts answered with and without drafting, by turns.

A round asks for every prompt once without drafting and once with each configuration of drafters, side by
side, in an order that moves on from round to round. A prompt comes again only in the next round, after all
others: what drafters and controller have learned from it is by then as old as it would be in use. Earlier
outputs are not remembered, else the second round would find its answers there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from foredraft._native import Model
from foredraft.core.sampling import Sampling
from foredraft.engine.completion import Completion, DrafterFigures, Figures
from foredraft.engine.draft_models import DraftModel
from foredraft.engine.drafting import MODEL, Drafting
from foredraft.engine.llm import LLM
from foredraft.errors import UsageError
from foredraft.measure.ceiling import SWEEP_BYTES, Bandwidth
from foredraft.measure.draft_step import DraftStep, draft_step
from foredraft.measure.native_clock import Clocked, ClockedTarget, NativeClock
from foredraft.measure.prices import PriceList
from foredraft.measure.prompts import Prompt
from foredraft.measure.replay import Recording
from foredraft.models.cores import physical_cores
from foredraft.models.draft import panels_of
from foredraft.models.target import NativeTarget
from foredraft.models.tokenizer import Tokenizer

Say = Callable[[str], None]
OFF = "off"
DRAFTERS = ("suffix", "auto")
WARM_UP = 8  # tokens, before anything is measured


@dataclass(frozen=True)
class SpeculationOrder:
    """What is to be measured. `threads` 0: one for each physical core."""

    model: str | Path
    prompts: tuple[Prompt, ...]
    drafters: tuple[str, ...] = DRAFTERS
    tokens: int = 400  # of an answer, at most
    repeat: int = 5  # rounds, so pairs of each prompt
    threads: int = 0
    sweep_bytes: int = SWEEP_BYTES

    def __post_init__(self) -> None:
        for name, least in (("repeat", 1), ("tokens", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}, but must be {least} or more")
        if not self.prompts:
            raise UsageError("there are no prompts to measure with")
        if not self.drafters or OFF in self.drafters or len(set(self.drafters)) < len(self.drafters):
            raise UsageError(
                f"-d {','.join(self.drafters)}: different configurations of drafters are expected, as in "
                f"{','.join(DRAFTERS)}; {OFF} is measured beside them anyway"
            )
        for drafter in self.drafters:
            Drafting(drafter)  # refuses what is none
        object.__setattr__(self, "threads", self.threads or physical_cores())

    @property
    def configurations(self) -> tuple[str, ...]:
        return (OFF, *self.drafters)

    def turns(self, number: int) -> tuple[str, ...]:
        """The configurations in the order of this round, counted from 0."""
        first = number % len(self.configurations)
        return (*self.configurations[first:], *self.configurations[:first])


@dataclass(frozen=True)
class Run:
    """One answer with one configuration, in numbers. `host_s` is the time outside native calls in the
    rounds after the first.
    """

    tok_s: float
    total_s: float
    rounds: int
    tokens: int
    drafted: int
    accepted: int
    host_s: float
    identical: bool
    by_drafter: dict[str, DrafterFigures]

    @property
    def host_ms(self) -> float | None:
        """A round."""
        return 1e3 * self.host_s / (self.rounds - 1) if self.rounds > 1 else None


@dataclass(frozen=True)
class Answer:
    """A prompt, what the target alone answered first, and all runs by configuration, in rounds."""

    prompt: Prompt
    recording: Recording
    runs: dict[str, list[Run]]

    @property
    def is_measurable(self) -> bool:
        """A single token has no speed."""
        return len(self.recording.output) > 1


@dataclass(frozen=True)
class Speculated:
    """All that was measured."""

    order: SpeculationOrder
    answers: Sequence[Answer]
    prices: PriceList
    weight_bytes: float
    isa: str
    tokenizer: Tokenizer
    step: DraftStep | None  # None: no model drafted


def speculate(order: SpeculationOrder, say: Say) -> Speculated:
    """Measure. `say` is told what is being done."""
    return SpeculationBench(order, say).measure()


class SpeculationBench:
    """A loaded model, and what is measured with it."""

    def __init__(self, order: SpeculationOrder, say: Say) -> None:
        self._order = order
        self._say = say
        say("loading the model")
        self._llm = LLM(order.model, threads=order.threads, drafting=Drafting(OFF), remember=False)
        assert isinstance(self._llm.target, NativeTarget)
        self._target = self._llm.target
        self._clock = NativeClock()
        self._llm.target = ClockedTarget(self._target, self._clock)
        for prompt in order.prompts:  # one that is too long is told now, not in an hour
            self._llm.request(self._llm.prompter.encode(prompt.text, raw=False), Sampling(), 0.0)
        self._drafts = self._draft_models()
        self._prices = PriceList(Bandwidth(order.sweep_bytes))
        self._answers: dict[Prompt, Answer] = {}

    def measure(self) -> Speculated:
        order = self._order
        for configuration in order.configurations:
            self._say(f"warming up: {configuration}")
            self._answer(order.prompts[0], configuration, WARM_UP)
        self._take_prices()
        pairs = [(number, prompt) for number in range(order.repeat) for prompt in order.prompts]
        progress = Progress(len(pairs) * len(order.configurations), self._say)
        self._say(self._estimate(len(pairs)))
        for index, (number, prompt) in enumerate(pairs):
            if index == len(pairs) // 2:
                self._take_prices()
            for configuration in order.turns(number):
                progress.begin(f"round {number + 1} of {order.repeat}: {prompt.label}, {configuration}")
                self._run(prompt, configuration)
        self._take_prices()
        return Speculated(
            order=order,
            answers=tuple(self._answers.values()),
            prices=self._prices,
            weight_bytes=float(self._target.model.weight_bytes),
            isa=str(self._target.model.isa),
            tokenizer=self._llm.tokenizer,
            step=self._draft_step(),
        )

    def _draft_models(self) -> dict[str, tuple[DraftModel, NativeTarget]]:
        """Those that the configurations name, each also without the clock that its calls get here."""
        roster, found = self._llm.roster, {}
        for configuration in self._order.drafters:
            for name in roster.names(Drafting(configuration)):
                if name.startswith(MODEL) and name not in found:
                    draft = roster.model(name)
                    found[name] = draft, NativeTarget(draft.native.spec, draft.native.model)
                    draft.native.model = cast(Model, Clocked(draft.native.model, self._clock))
        return found

    def _draft_step(self) -> DraftStep | None:
        """Of the first draft model; None if there is none."""
        for name, (draft, native) in self._drafts.items():
            self._say(f"measuring a step of {name}")
            vocab = min(native.vocab, self._target.vocab)
            return draft_step(name, native, draft.pool, panels_of(vocab, draft.special_ids))
        return None

    def _take_prices(self) -> None:
        self._say("measuring what passes cost")
        self._prices.take(self._target, self._llm.pool)

    def _estimate(self, pairs: int) -> str:
        """Drafting makes it shorter, prompts make it longer."""
        seconds = self._prices.prices().seconds(1) * self._order.tokens * pairs
        most = seconds * len(self._order.configurations) / 60
        return (
            f"{pairs} pairs for each of {', '.join(self._order.drafters)}: about {most:.0f} minutes or less"
        )

    def _run(self, prompt: Prompt, configuration: str) -> None:
        """The first run of a prompt is one without drafting: its answer is the one that counts."""
        recording, completion, host_s = self._answer(prompt, configuration, self._order.tokens)
        runs = {name: list[Run]() for name in self._order.configurations}
        answer = self._answers.setdefault(prompt, Answer(prompt, recording, runs))
        identical = recording == answer.recording
        if not identical:
            self._say(f"{prompt.label}: THE ANSWER WITH {configuration} DIFFERS")
        answer.runs[configuration].append(run_of(completion.figures, host_s, identical))

    def _answer(self, prompt: Prompt, configuration: str, tokens: int) -> tuple[Recording, Completion, float]:
        """Also the time outside native calls, in the rounds after the first, which holds the prompt."""
        moments: list[float] = []
        sampling = Sampling(max_tokens=tokens)
        with self._llm.stream(prompt.text, sampling, drafting=Drafting(configuration)) as stream:
            for _ in stream:
                moments.append(time.perf_counter() - self._clock.seconds)
            completion = stream.completion
            text = tuple(stream.ids)
        start = completion.prompt_tokens
        return Recording(text[:start], text[start:]), completion, moments[-1] - moments[0]


def run_of(figures: Figures, host_s: float, identical: bool) -> Run:
    return Run(
        tok_s=figures.tok_s or 0.0,
        total_s=figures.total_s,
        rounds=figures.rounds,
        tokens=figures.tokens,
        drafted=figures.drafted,
        accepted=figures.accepted,
        host_s=host_s,
        identical=identical,
        by_drafter=dict(figures.by_drafter),
    )


class Progress:
    """Tells how far a long measurement has come, and how long the rest will take if it goes on like this."""

    def __init__(self, count: int, say: Say) -> None:
        self._count = count
        self._say = say
        self._begun = 0
        self._started = time.monotonic()

    def begin(self, what: str) -> None:
        """One more of `count` begins."""
        left = ""
        if self._begun:
            seconds = (time.monotonic() - self._started) / self._begun * (self._count - self._begun)
            left = f" (about {seconds / 60:.0f} minutes left)"
        self._begun += 1
        self._say(f"{what}{left}")
