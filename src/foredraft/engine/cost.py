"""What a pass costs, learned from the passes that are made anyway.

A pass reads the weights once and does arithmetic for every row; whichever takes longer decides, with a soft
corner where both take about as long:

    seconds(rows) = (read^4 + (rows * row)^4)^(1/4) * correction(rows)

Both times are learned from every pass in proportion to their share in it, so that the curve follows a machine
whose bandwidth or clock changes, also for numbers of rows that were not tried lately. What a tile size or a
long context adds is the correction's affair, kept for each number of rows.
"""

import math

CORNER = 4.0  # fits the passes of 1 to 32 rows on machines with and without VNNI within a few per cent
READ_ROWS = 5.0  # rows whose arithmetic takes as long as reading, until it is measured
SPEED = 0.12  # at which old measurements are forgotten
CORRECTION_SPEED = 0.1
TRANSFER = 0.05  # of a correction to the curve, where the other sizes have it too
CLIP = 0.5  # most that one pass may change, as a logarithm: it may have been disturbed
LARGEST = 64
SHORTEST, LONGEST = 1e-9, 1e6  # seconds that a pass may take; else the clock stood still, or jumped


class PassCost:
    """Seconds of a pass by its number of rows."""

    def __init__(self, like: "PassCost | None" = None, factor: float = 1.0) -> None:
        """Before anything is measured, `factor` times what another model's passes take."""
        self._like = like
        self._factor = factor
        self._read = 0.0
        self._row = 0.0
        self._seen_read = 0.0  # how much was learned of each time: the first passes count more
        self._seen_row = 0.0
        self._corrections = [0.0] * (LARGEST + 1)

    @property
    def is_known(self) -> bool:
        """Whether a pass of few rows was seen, so that the price of another row can be told."""
        return self._seen_read >= 0.5

    def seconds(self, rows: int) -> float:
        """Of one pass; 0 while nothing is known."""
        if self._read == 0.0 and self._like is not None:
            return self._factor * self._like.seconds(rows)
        return self._curve(rows) * math.exp(self._corrections[min(rows, LARGEST)])

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a pass."""
        if not SHORTEST < seconds < LONGEST or rows < 1:
            return
        if self._read == 0.0 and self._like is not None and self._like.is_known:
            self._read, self._row = self._factor * self._like._read, self._factor * self._like._row
        if self._read == 0.0:
            self._row = seconds / (READ_ROWS**CORNER + rows**CORNER) ** (1 / CORNER)
            self._read = READ_ROWS * self._row
        share = (self._read / self._curve(rows)) ** CORNER
        size = min(rows, LARGEST)
        error = math.log(seconds / self.seconds(rows))
        if self._seen_read + self._seen_row >= 4.0:
            error = min(CLIP, max(-CLIP, error))
        self._seen_read += share
        self._seen_row += 1.0 - share
        common = TRANSFER * self._corrections[size]
        read_speed = max(SPEED, 1.0 / max(1.0, self._seen_read))
        row_speed = max(SPEED, 1.0 / max(1.0, self._seen_row))
        self._read *= math.exp((error * read_speed + common) * share)
        self._row *= math.exp((error * row_speed + common) * (1.0 - share))
        self._corrections[size] += CORRECTION_SPEED * error - common * (share**2 + (1.0 - share) ** 2)
        self._read = max(self._read, self._row)  # with no share in any pass it would never be learned

    def _curve(self, rows: int) -> float:
        return float((self._read**CORNER + (rows * self._row) ** CORNER) ** (1 / CORNER))
