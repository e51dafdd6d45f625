"""Whether to ask a drafter whose answer takes time.

Each ask shows what it was worth: the best draft with its tokens, less the best one without them, less its
time, all in tokens. How much that is depends on what the cheap drafters have found already, so it is learned
for classes of that. Whoever is not asked is slowly forgiven, so that it is tried again after some hundred
rounds, or when the text changes to a class where it helped; each time in vain it takes twice as long.

What asking promised is one thing, what came of it another. An account of the latter, against rounds without
any draft, may be overdrawn by a few tokens and a small share of the rounds, and by no more.
"""

from bisect import bisect

EDGES = (0.1, 0.4, 1.0, 2.0, 4.0)  # tokens that a draft without it is worth
NEGLIGIBLE = 0.01  # tokens: whoever takes less time is always asked
HOPE = 0.5  # tokens that an ask is expected to be worth before anything is known
SPEED = 0.2
SIDE = 0.25  # of what is learned for one class, the part that the others learn
FORGIVENESS = 0.004  # a round
CREDIT = 4.0  # tokens that may be lost on trying
CREDIT_SHARE = 0.005  # and so many for every round
CATCH_UP = 16.0  # tokens that may be spent at once on catching up
CATCH_UP_SHARE = 0.1  # and so many for every round


class Worth:
    """Of one drafter."""

    def __init__(self) -> None:
        self._gains = [HOPE] * (len(EDGES) + 1)
        self._seen = [1.0] * (len(EDGES) + 1)
        self._seconds = 0.0
        self._rounds = self._asked = 0
        self._account = 0.0  # tokens that came of asking
        self._forgiveness = FORGIVENESS
        self._returns = False  # the next ask is one after it was left out

    def is_negligible(self, rate: float) -> bool:
        """Whether asking takes no time to speak of."""
        return self._seconds * rate < NEGLIGIBLE

    @property
    def is_started(self) -> bool:
        """Whether it was asked before this round."""
        return self._asked > 1

    def pays(self, value: float, rate: float, catch_up_s: float, rounds: float) -> bool:
        """Whether to ask, beside a draft of this value. Catching up must be earned within so many rounds."""
        gain, price = self._gains[bisect(EDGES, value)], rate * catch_up_s
        solvent = self._account > -(CREDIT + CREDIT_SHARE * self._rounds)
        affordable = price < CATCH_UP + CATCH_UP_SHARE * self._rounds
        return gain > 0.0 and gain * rounds > price and solvent and affordable

    def note_time(self, seconds: float) -> None:
        """It was asked, and took so long."""
        self._seconds += (seconds - self._seconds) * (SPEED if self._seconds else 1.0)

    def note(self, value: float, gain: float) -> None:
        """It was asked: beside a draft of this value its own was worth so much more, its time deducted."""
        self._asked += 1
        if self._returns or gain > 0.0:
            self._forgiveness = FORGIVENESS if gain > 0.0 else self._forgiveness / 2
        self._returns = False
        at = bisect(EDGES, value)
        for kind in range(len(self._gains)):
            part = 1.0 if kind == at else SIDE
            self._seen[kind] += part
            self._gains[kind] += part * max(SPEED, 1.0 / self._seen[kind]) * (gain - self._gains[kind])

    def settle(self, tokens: float) -> None:
        """A round is over in which asking brought so many tokens, its time deducted; 0 without an ask."""
        self._rounds += 1
        self._account = min(self._account + tokens, CREDIT)  # old merits do not pay for much

    def skip(self, value: float) -> None:
        """It was not asked."""
        at = bisect(EDGES, value)
        self._returns = True
        self._gains[at] += self._forgiveness * (HOPE - self._gains[at])
