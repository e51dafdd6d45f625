"""What `foredraft bench` measures, in numbers: contexts, rows, lengths. The defaults are those that the goals
are stated for.
"""

from dataclasses import dataclass, replace
from typing import Self

from foredraft.core.sampling import Sampling
from foredraft.engine.kv import BLOCK, blocks_for
from foredraft.measure.ceiling import SWEEP_BYTES

PICKING = Sampling(temperature=0.8, top_p=0.95, seed=1)


@dataclass(frozen=True)
class Settings:
    """Contexts are the positions before the measured rows."""

    short: int = 128
    middle: int = 512
    long: int = 4000
    rows: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 32)  # at the middle context
    prompt: int = 512
    generated: int = 64  # tokens, after a prompt of the short context
    filled: int = 4096  # context of the process whose memory is measured
    picked: int = 8  # rows
    passes: int = 3  # in a row, where a core is taken
    sweep_bytes: int = SWEEP_BYTES

    def fitted(self, trained: int) -> Self:
        """The same, or all lengths smaller by one factor where the model was trained for less."""
        share = (trained - BLOCK) / max(self.long, self.filled - BLOCK)
        if share >= 1:
            return self
        return replace(
            self,
            short=_scaled(self.short, share),
            middle=_scaled(self.middle, share),
            long=_scaled(self.long, share),
            prompt=_scaled(self.prompt, share),
            generated=_scaled(self.generated, share),
            filled=_scaled(self.filled, share),
        )

    @property
    def blocks(self) -> int:
        """Of KV memory for all sequences at once, each with room for rows that are not kept."""
        lengths = (self.short, self.middle, self.long, self.prompt, self.short + self.generated, 2 * BLOCK)
        return sum(blocks_for(length + max(self.rows)) for length in lengths)


def _scaled(length: int, share: float) -> int:
    return max(2, int(length * share))
