"""The native module bare: a model from a file, and passes over rows with block tables of a test's choice."""

import numpy as np

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import BLOCK, config_of, tensor_list


class Native:
    """A loaded model. `kv`, `threads` and `isa` are as the native module takes them."""

    def __init__(self, path, *, blocks=16, kv="f16", threads=1, isa=""):
        file = read_gguf(path)
        self.spec = describe(file)
        tensors = tensor_list(file, self.spec)
        self.model = _native.Model(config_of(self.spec), tensors, str(path), blocks, kv, threads, isa)
        self.layers = int32s(range(len(self.spec.layers)))

    def run(self, rows, lengths, tables, wanted=None):
        """Logits [wanted, vocab] and hidden states [layers, wanted, dim]; of all rows if none are named."""
        wanted = int32s(range(len(rows)) if wanted is None else wanted)
        return self.forward(rows, lengths, tables, wanted, self.layers, wanted)

    def logits(self, rows, lengths, tables, wanted):
        """Logits alone, [wanted, vocab]."""
        return self.forward(rows, lengths, tables, wanted, (), ())[0]

    def forward(self, rows, lengths, tables, wanted, layers, taps):
        """Logits [wanted, vocab] and hidden states [layers, taps, dim]."""
        arguments = (rows.tokens, rows.parents, rows.owners, int32s(lengths), tables_of(tables))
        return self.model.forward(*arguments, *(int32s(chosen) for chosen in (wanted, layers, taps)))

    def bits(self, rows, lengths, tables, wanted=None):
        """All that a pass computes, a line a wanted row, as integers: equal only if equal to the bit."""
        logits, hidden = self.run(rows, lengths, tables, wanted)
        lines = np.concatenate([logits, *hidden], axis=1)
        return lines.view(np.int32)

    def prefill(self, tokens, table, *, chunk=512, start=0):
        """Run tokens[start:] as a chain, `chunk` rows a pass; the bits of every row."""
        found = [
            self.bits(Rows.chain(tokens[at : at + chunk]), [at], [table])
            for at in range(start, len(tokens), chunk)
        ]
        return np.concatenate(found) if found else np.zeros((0, 0), np.int32)


def tables_of(tables):
    """[sequences, most blocks]; what a shorter table lacks is 0 and never read."""
    width = max((len(table) for table in tables), default=0)
    return np.array([[*table, *[0] * (width - len(table))] for table in tables], np.int32).reshape(-1, width)


def slot(table, position):
    return table[position // BLOCK] * BLOCK + position % BLOCK


def path_to(parents, row):
    """The rows from a root to the given one, itself included."""
    path = [row]
    while parents[path[-1]] >= 0:
        path.append(int(parents[path[-1]]))
    return path[::-1]


def keep(native, table, length, path):
    """Move the kept rows of a tree into place, as `KVSequence.keep` would; the new length."""
    moved = [(row, place) for place, row in enumerate(path) if row != place]
    source = int32s(slot(table, length + row) for row, _ in moved)
    native.model.move(source, int32s(slot(table, length + place) for _, place in moved))
    return length + len(path)


def assert_same(found, expected):
    wrong = np.flatnonzero((found != expected).any(axis=1))
    assert not len(wrong), f"rows {wrong.tolist()} of {len(found)} differ from the same rows alone"
