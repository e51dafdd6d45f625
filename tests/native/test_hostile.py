"""What a pass and a move refuse: a plain error, nothing computed, the model still whole. Callers check first
and say more; this is the last door before memory.
"""

import numpy as np
import pytest
from bare_native import Native, slot
from tiny import write_tiny

from foredraft.core.nouns import int32s
from foredraft.models.target import BLOCK

BLOCKS = 3
NONE = int32s([])
LARGEST, SMALLEST = 2**31 - 1, -(2**31)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("hostile") / "tiny.gguf", "gemma3", quant=("Q4_0", "F16"))


@pytest.fixture(scope="module")
def native(path):
    return Native(path, blocks=BLOCKS, threads=2)


GOOD = {
    "tokens": int32s([5, 6, 7]),
    "parents": int32s([-1, 0, 0]),
    "owners": int32s([0, 0, 0]),
    "lengths": int32s([2]),
    "tables": np.array([[1]], np.int32),
    "wanted": int32s([2]),
    "hidden_layers": int32s([1]),
    "hidden_rows": int32s([0]),
}


def forward(native, **changed):
    return native.model.forward(**(GOOD | changed))


@pytest.fixture
def unharmed(native):
    """After the test, the model computes what it computed before."""
    native.prefill([8, 9], [1])
    before = [values.tobytes() for values in forward(native)]
    yield native
    assert [values.tobytes() for values in forward(native)] == before


def with_value(name, place, value):
    array = GOOD[name].copy()
    array[place] = value
    return {name: array}


@pytest.mark.parametrize(
    ("name", "place", "value", "why"),
    [
        ("tokens", 1, -1, "token id"),
        ("tokens", 1, 300, "token id"),
        ("tokens", 0, LARGEST, "token id"),
        ("parents", 0, 0, "parent must be an earlier row"),
        ("parents", 1, 2, "parent must be an earlier row"),
        ("parents", 2, -2, "parent must be an earlier row"),
        ("parents", 2, SMALLEST, "parent must be an earlier row"),
        ("owners", 0, 1, "owner is no sequence"),
        ("owners", 2, -1, "owner is no sequence"),
        ("owners", 2, LARGEST, "owner is no sequence"),
        ("lengths", 0, -1, "negative"),
        ("lengths", 0, BLOCK - 2, "no room"),
        ("lengths", 0, LARGEST, "no room"),
        ("tables", (0, 0), -1, "block id"),
        ("tables", (0, 0), BLOCKS, "block id"),
        ("tables", (0, 0), LARGEST, "block id"),
        ("wanted", 0, 3, "logits are wanted of a row that is not there"),
        ("wanted", 0, -1, "logits are wanted of a row that is not there"),
        ("hidden_layers", 0, 2, "after a layer that is not there"),
        ("hidden_layers", 0, -1, "after a layer that is not there"),
        ("hidden_rows", 0, 3, "hidden states are wanted of a row that is not there"),
        ("hidden_rows", 0, SMALLEST, "hidden states are wanted of a row that is not there"),
    ],
)
def test_rows_out_of_range_are_refused(unharmed, name, place, value, why):
    with pytest.raises(ValueError, match=why):
        forward(unharmed, **with_value(name, place, value))


def test_parent_in_another_sequence_is_refused(unharmed):
    changed = {"owners": int32s([0, 0, 1]), "lengths": int32s([2, 0]), "tables": np.int32([[1], [2]])}
    with pytest.raises(ValueError, match="another sequence"):
        forward(unharmed, **changed)


@pytest.mark.parametrize("name", ["tokens", "parents", "owners", "lengths", "tables"])
def test_lists_of_different_lengths_are_refused(unharmed, name):
    with pytest.raises(ValueError, match="differ"):
        forward(unharmed, **{name: np.repeat(GOOD[name], 2, axis=0)})


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint32, np.int16, np.bool_])
def test_arrays_of_another_type_are_refused_not_converted(unharmed, name, kind):
    with pytest.raises(TypeError):
        forward(unharmed, **{name: GOOD[name].astype(kind)})


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "change",
    [lambda array: array[None], lambda array: array[0], lambda array: array.tolist(), lambda array: None],
    ids=["more dimensions", "fewer dimensions", "list", "None"],
)
def test_arrays_of_another_shape_are_refused(unharmed, name, change):
    with pytest.raises(TypeError):
        forward(unharmed, **{name: change(GOOD[name])})


@pytest.mark.parametrize("name", ["tokens", "parents", "owners"])
def test_arrays_with_gaps_are_refused(unharmed, name):
    with pytest.raises(TypeError):
        forward(unharmed, **{name: np.repeat(GOOD[name], 2)[::2]})


def test_empty_pass_gives_nothing(unharmed):
    empty = {name: NONE for name in GOOD if name != "tables"}
    for tables in (np.zeros((0, 0), np.int32), np.zeros((0, 4), np.int32)):
        logits, hidden = forward(unharmed, **empty, tables=tables)
        assert (logits.shape, hidden.shape) == ((0, 300), (0, 0, 64))
    rows = dict.fromkeys(("tokens", "parents", "owners", "wanted", "hidden_rows"), NONE)
    logits, hidden = forward(unharmed, **rows)
    assert (logits.shape, hidden.shape) == ((0, 300), (1, 0, 64))
    with pytest.raises(ValueError, match="not there"):
        forward(unharmed, **rows | {"wanted": int32s([0])})


def test_sequences_without_rows_are_no_trouble(unharmed):
    expected, _ = forward(unharmed)
    lengths, tables = int32s([LARGEST, 2, 0]), np.int32([[0, 0], [1, 0], [2, 2]])
    logits, _ = forward(unharmed, owners=int32s([1, 1, 1]), lengths=lengths, tables=tables)
    assert (logits == expected).all()


def test_last_position_of_a_table_is_used_and_none_after_it(unharmed):
    one = {"tokens": int32s([5]), "parents": int32s([-1]), "owners": int32s([0])} | dict.fromkeys(
        ("wanted", "hidden_rows"), int32s([0])
    )
    forward(unharmed, **one, lengths=int32s([BLOCK - 1]))
    with pytest.raises(ValueError, match=r"no room for position \(64\)"):
        forward(unharmed, **one, lengths=int32s([BLOCK]))


# move


@pytest.mark.parametrize("wrong", [-1, BLOCKS * BLOCK, LARGEST, SMALLEST])
def test_slots_out_of_range_are_refused_and_nothing_is_moved(unharmed, wrong):
    first = slot([1], 0)
    for source, target in (([9, wrong], [first, 10]), ([9, 10], [first, wrong])):
        with pytest.raises(ValueError, match=f"no such slot: {wrong}"):
            unharmed.model.move(int32s(source), int32s(target))


def test_moves_of_the_wrong_form_are_refused(unharmed):
    with pytest.raises(ValueError, match="differ in length"):
        unharmed.model.move(int32s([1, 2]), int32s([1]))
    for wrong in (np.int64([1]), np.float32([1]), np.int32([[1]]), [1], None):
        with pytest.raises(TypeError):
            unharmed.model.move(wrong, int32s([1]))


def test_moves_to_where_it_lies_and_of_nothing_change_nothing(unharmed):
    unharmed.model.move(NONE, NONE)
    unharmed.model.move(int32s(range(BLOCKS * BLOCK)), int32s(range(BLOCKS * BLOCK)))


# What else can be asked of a model.


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_number_of_threads_that_cannot_be_is_refused_later_too(unharmed, count):
    with pytest.raises((ValueError, TypeError)):
        unharmed.model.threads = count
    assert unharmed.model.threads == 2


def test_unknown_matrix_has_no_values(unharmed):
    with pytest.raises(ValueError, match="no matrix 'nothing'"):
        unharmed.model.dequantise("nothing")
