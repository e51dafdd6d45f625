"""A cut head: the logits of chosen panels are the very bits of the full head's, and nothing else changes."""

import numpy as np
import pytest
from bare_native import Native
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.target import PANEL

VOCAB = 293  # eighteen panels and five tokens
PANELS = -(-VOCAB // PANEL)
LAST = PANELS - 1
LARGEST, SMALLEST = 2**31 - 1, -(2**31)
CHOICES = {
    "first": [0],
    "last": [LAST],
    "some": [1, 2, 3, 9, 12],
    "some and the last": [0, 7, LAST],
    "all": list(range(PANELS)),
}
HEADS = ("Q4_0", "Q5_1", "Q8_0", "F16", "Q6_K")


@pytest.fixture(scope="module", params=HEADS)
def path(request, tmp_path_factory):
    shape = {"dim": 256, "heads": 16, "layers": 1, "vocab": VOCAB, "tied": False}
    return write_tiny(tmp_path_factory.mktemp("panels") / "tiny.gguf", quant=("F16", request.param), **shape)


def arguments(count, wanted):
    """A pass of so many rows after nothing, with a hidden state."""
    rows = Rows.chain([(7 * row + 3) % VOCAB for row in range(count)])
    table = np.arange(2, dtype=np.int32)[np.newaxis]
    taps = int32s([0]), int32s([count - 1])
    return (rows.tokens, rows.parents, rows.owners, int32s([0]), table, int32s(wanted), *taps)


def tokens_of(panels):
    return (np.array(panels)[:, np.newaxis] * PANEL + np.arange(PANEL)).ravel()


@pytest.mark.parametrize("isa", _native.isa_names())
def test_chosen_panels_are_the_full_heads(path, isa):
    for threads in (1, 2, 5):
        model = Native(path, blocks=2, isa=isa, threads=threads).model
        for count, wanted in ((1, [0]), (3, [2, 0]), (40, range(40))):
            full, hidden = model.forward(*arguments(count, wanted))
            for panels in CHOICES.values():
                cut, same = model.forward(*arguments(count, wanted), int32s(panels))
                tokens = tokens_of(panels)
                known = tokens < VOCAB
                assert cut.shape == (len(wanted), len(tokens))
                assert cut[:, known].tobytes() == full[:, tokens[known]].tobytes()
                assert (cut[:, ~known] == -np.inf).all()
                assert same.tobytes() == hidden.tobytes()


@pytest.mark.parametrize("none", [(), (int32s([]),), (None,)], ids=["left out", "empty", "None"])
def test_no_panels_are_all(path, none):
    model = Native(path, blocks=2).model
    full, _ = model.forward(*arguments(3, [0, 1, 2]))
    logits, _ = model.forward(*arguments(3, [0, 1, 2]), *none)
    assert logits.shape == (3, VOCAB)
    assert logits.tobytes() == full.tobytes()


def test_vocabulary_of_whole_panels_has_no_padding(tmp_path):
    model = Native(write_tiny(tmp_path / "a", vocab=320), blocks=2).model
    cut, _ = model.forward(*arguments(1, [0]), int32s([19]))
    assert np.isfinite(cut).all()


def test_panels_without_wanted_rows_give_nothing(path):
    model = Native(path, blocks=2).model
    logits, hidden = model.forward(*arguments(3, []), int32s([0, LAST]))
    assert logits.shape == (0, 2 * PANEL)
    assert hidden.tobytes() == model.forward(*arguments(3, []))[1].tobytes()


@pytest.mark.parametrize(
    "panels",
    [
        [-1],
        [PANELS],
        [LARGEST],
        [SMALLEST],
        [0, 0],
        [1, 0],
        [0, 2, 1],
        [0, PANELS],
        [-1, 0],
        [LAST, SMALLEST],
    ],
)
def test_panels_that_cannot_be_are_refused_and_nothing_is_computed(path, panels):
    native = Native(path, blocks=2)
    native.prefill([8, 9], [0])
    before = native.logits(Rows.chain([5]), [2], [[0]], [0]).tobytes()
    with pytest.raises(ValueError, match=f"must rise from 0 to {LAST}"):
        native.model.forward(*arguments(3, [0]), int32s(panels))
    assert native.logits(Rows.chain([5]), [2], [[0]], [0]).tobytes() == before


def test_panels_are_looked_at_before_memory_is_asked_for(path):
    """So that a long list of nonsense is an error of its own and not a want of memory."""
    with pytest.raises(ValueError, match="must rise"):
        Native(path, blocks=2).model.forward(*arguments(3, [0] * 100_000), np.zeros(10_000_000, np.int32))


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint32])
def test_panels_of_another_type_are_refused(path, kind):
    with pytest.raises(TypeError):
        Native(path, blocks=2).model.forward(*arguments(1, [0]), np.array([0], kind))


@pytest.mark.parametrize("panels", [np.int32([[0]]), [0], np.arange(4, dtype=np.int32)[::2]])
def test_panels_of_another_form_are_refused(path, panels):
    with pytest.raises(TypeError):
        Native(path, blocks=2).model.forward(*arguments(1, [0]), panels)
