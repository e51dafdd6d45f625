"""What picking costs: milliseconds for 8 rows of 151,936 logits under several settings, by row shape and
number of threads.

    python benchmarks/picks.py [--rows 8] [--vocab 151936] [--repeats 30]

`peaked` rows look like a language model's (a few likely tokens over a broad floor); `flat` rows are the worst
case of top-p, normal noise in which thousands of tokens share the probability. Printed is the least and the
median over all repeats, interleaved.
"""

import argparse
import statistics
import time

import numpy as np

from foredraft.core.history import History
from foredraft.core.nouns import Floats
from foredraft.core.pick import Place
from foredraft.core.sampling import Sampling
from foredraft.models.native_pick import NativePicker

SETTINGS = {
    "temperature 0": Sampling(),
    "temperature 0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95, seed=1),
    "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": Sampling(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=1
    ),
    "temperature 1, no filter": Sampling(temperature=1.0, seed=1),
    "temperature 2, top-p 0.95": Sampling(temperature=2.0, top_p=0.95, seed=1),
    "temperature 0.8, top-p 0.95, penalties": Sampling(
        temperature=0.8, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.5, seed=1
    ),
}


def rows(shape: str, count: int, vocab: int) -> Floats:
    """[count, vocab] logits from a fixed seed."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0.0, 3.0, (count, vocab))
    if shape == "peaked":
        for row in logits:
            row[generator.integers(0, vocab, 60)] += np.linspace(16.0, 4.0, 60)
    return logits.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    pickers = {
        "1 thread": NativePicker(1),
        "2 threads": NativePicker(2),
        "1 thread, baseline": NativePicker(1, baseline=True),
    }
    written = History(range(0, options.vocab, max(1, options.vocab // 2000)))
    for shape in ("peaked", "flat"):
        logits = rows(shape, options.rows, options.vocab)
        for name, sampling in SETTINGS.items():
            places = [Place(sampling, 100 + i, written, (5,) * i) for i in range(options.rows)]
            times: dict[str, list[float]] = {key: [] for key in pickers}
            for _ in range(options.repeats):
                for key, picker in pickers.items():
                    start = time.perf_counter()
                    picker.pick(logits, places)
                    times[key].append((time.perf_counter() - start) * 1e3)
            figures = "   ".join(
                f"{key} {min(t):6.2f} / {statistics.median(t):6.2f}" for key, t in times.items()
            )
            print(f"{shape:7} {name:52} {figures} ms")


if __name__ == "__main__":
    main()
