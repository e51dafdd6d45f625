"""How much the controller gives away: every recorded answer is replayed with `auto`, and with each fixed
choice that could have been made instead, at the prices measured.

Only drafters without a model take part: a replay cannot know what a model would have guessed. Drafting takes
no time here. What `auto` has learned from one answer serves the next, as in a process that goes on.

    python -m foredraft.measure.regret RESULT.json

replays the answers of a result that `foredraft bench --speculation --out` kept.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from foredraft.core.drafter import Drafter
from foredraft.core.sampling import Sampling
from foredraft.drafters.ngram import NGram
from foredraft.drafters.suffix import Suffix
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.completion import Figures
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import MODEL_FREE, SCRATCH_ROWS, Drafting
from foredraft.engine.kv import KVPool, blocks_for
from foredraft.engine.request import Request
from foredraft.engine.speculator import Limits, Speculator
from foredraft.engine.stream import Host, Stream
from foredraft.measure.prices import Prices
from foredraft.measure.replay import Recording, ReplayTarget, VirtualClock
from foredraft.models.cache import find_model
from foredraft.models.gguf import read_gguf
from foredraft.models.stream import TextStream
from foredraft.models.tokenizer import Tokenizer

DRAFTERS: Mapping[str, Callable[[], Drafter]] = {"ngram": NGram, "suffix": Suffix}
AUTO = Drafting("+".join(MODEL_FREE))
LONGEST = 16
FIXED = (
    Drafting("off"),
    *(Drafting(drafter, k=k) for drafter in DRAFTERS for k in range(1, LONGEST + 1)),
)


@dataclass(frozen=True)
class Experience:
    """What outlives a request."""

    cost: PassCost = field(default_factory=PassCost)
    acceptance: Acceptance = field(default_factory=Acceptance)


@dataclass(frozen=True)
class Regret:
    """Seconds from the first token to the last, on the replay's clock."""

    prompt: str
    auto_s: float
    best_s: float
    best: str

    @property
    def share(self) -> float:
        """Of the best choice's time, what `auto` takes more; below 0 where it takes less."""
        return self.auto_s / self.best_s - 1

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "share": self.share}


class Replayer:
    """Replays recordings at these prices, one after another."""

    def __init__(self, prices: Prices, tokenizer: Tokenizer) -> None:
        self._prices = prices
        self._tokenizer = tokenizer
        self._experience = Experience()

    def regret(self, prompt: str, recording: Recording, fixed: Sequence[Drafting] = FIXED) -> Regret:
        auto_s = self.figures(recording, AUTO).decode_s
        times = {name_of(choice): self.figures(recording, choice).decode_s for choice in fixed}
        best = min(times, key=lambda name: times[name])
        return Regret(prompt, auto_s, times[best], best)

    def figures(self, recording: Recording, drafting: Drafting) -> Figures:
        """Of the recorded answer, given once more. A choice that is fixed neither learns nor teaches."""
        experience = self._experience if drafting == AUTO else Experience()
        clock = VirtualClock()
        vocab = 1 + max(*recording.prompt, *recording.output, 1)
        most = len(recording.output)
        pool = KVPool(blocks_for(len(recording.prompt) + most + SCRATCH_ROWS))
        cache = pool.open()
        target = ReplayTarget(recording, self._prices, clock, vocab)
        drafters = [DRAFTERS[name]() for name in drafting.names if name in DRAFTERS]
        controller = Controller(experience.cost, experience.acceptance)
        stream = Stream(
            Host(target, cache, threading.RLock(), cache.close, clock),
            Request(recording.prompt, Sampling(max_tokens=most), frozenset(), most, clock()),
            TextStream(self._tokenizer, end_ids=(), max_tokens=most),
            Speculator(drafters, controller, Limits(vocab, frozenset(), drafting.k), clock),
        )
        for _ in stream:
            pass
        assert tuple(stream.completion.ids) == recording.output, "the replay left the recording"
        return stream.completion.figures


def name_of(drafting: Drafting) -> str:
    return drafting.drafter if drafting.k is None else f"{drafting.drafter} -k {drafting.k}"


def kept_regrets(path: Path) -> Iterator[Regret]:
    """Of the answers in a result that was kept; the same as in the run that kept it."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    prices = Prices({int(rows): ms / 1e3 for rows, ms in kept["pass_ms"].items()})
    replayer = Replayer(prices, Tokenizer.from_gguf(read_gguf(find_model(kept["model"]))))
    for answer in kept["answers"]:
        recording = Recording(tuple(answer["prompt_ids"]), tuple(answer["output_ids"]))
        if len(recording.output) > 1:
            yield replayer.regret(f"{answer['kind']}-{answer['name']}", recording)


def main(arguments: list[str]) -> None:
    for one in kept_regrets(Path(arguments[0])):
        print(f"{one.prompt:24} {one.share:7.1%}  {one.auto_s:.2f} s, {one.best}: {one.best_s:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
