"""What the native module refuses, and that it refuses it: a plain error, nothing computed, the model still
whole. Callers check first and say more; this is the last door before memory.
"""

import numpy as np
import pytest
from bare_native import Native, slot
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import BLOCK, config_of, tensor_list

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


# Loading.


def create(path, config=None, tensors=None, **options):
    file = read_gguf(path)
    spec = describe(file)
    arguments = {"path": str(path), "kv_blocks": BLOCKS, **options}
    return _native.Model(
        config_of(spec) | (config or {}), tensor_list(file, spec) if tensors is None else tensors, **arguments
    )


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("threads", 0, "threads must be 1 to 1024"),
        ("threads", 1025, "threads must be 1 to 1024"),
        ("threads", 2**63, "threads must be 1 to 1024"),
        ("isa", "mmx", "'mmx' can't run on this machine; it has:.* scalar"),
        ("kv_type", "q8", "kv_type must be f16 or f32"),
        ("kv_blocks", 2**25, "too many KV blocks"),
        ("kv_blocks", 2**60, "too many KV blocks"),
        ("kv_blocks", 2**64 - 1, "too many KV blocks"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(path, option, value, why):
    with pytest.raises(ValueError, match=why):
        create(path, **{option: value})


@pytest.mark.parametrize(("option", "value"), [("threads", -1), ("kv_blocks", -1), ("kv_blocks", 2**64)])
def test_options_that_are_no_counts_are_refused(path, option, value):
    with pytest.raises(TypeError):
        create(path, **{option: value})


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_number_of_threads_that_cannot_be_is_refused_later_too(unharmed, count):
    with pytest.raises((ValueError, TypeError)):
        unharmed.model.threads = count
    assert unharmed.model.threads == 2


def test_model_without_a_cache_runs_nothing(path):
    model = create(path, kv_blocks=0)
    with pytest.raises(ValueError, match="block id"):
        model.forward(**GOOD)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("dim", 0, "multiples of 16"),
        ("dim", 72, "multiples of 16"),
        ("dim", 80, "is 300 x 64, expected 300 x 80"),
        ("dim", -64, "'dim' has the wrong type or sign"),
        ("dim", "64", "'dim' has the wrong type or sign"),
        ("vocab", 0, "vocabulary"),
        ("vocab", 299, "is 300 x 64, expected 299 x 64"),
        ("vocab", 2**32, "no model has a size of 4294967296"),
        ("heads", 0, "multiple of kv_heads"),
        ("heads", 5, "multiple of kv_heads"),
        ("heads", 2**60 + 4, "no model has a size of"),
        ("kv_heads", 0, "multiple of kv_heads"),
        ("kv_heads", 2**60 + 2, "no model has a size of"),
        ("head_dim", 8, "multiples of 16"),
        ("head_dim", 2**61 + 16, "no model has a size of"),
        ("ff", 2**63, "no model has a size of"),
        ("activation", "relu", "unknown activation 'relu'"),
        ("layers", [], "layers"),
        ("layers", [(0, 1e4, 1.0)] * 3, "tensor 2.attn_norm is missing"),
        ("layers", [(0,)], "'layers' has the wrong type"),
        ("layers", [(-1, 1e4, 1.0)] * 2, "'layers' has the wrong type or sign"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(path, field, value, why):
    with pytest.raises(ValueError, match=why):
        create(path, {field: value})


def test_configuration_that_lacks_something_says_what(path):
    file = read_gguf(path)
    config = config_of(describe(file))
    for field in (field for field in config if field != "context"):
        rest = {name: value for name, value in config.items() if name != field}
        with pytest.raises(ValueError, match=f"lacks '{field}'"):
            _native.Model(rest, tensor_list(file, describe(file)), str(path), BLOCKS)


def tensors_of(path):
    file = read_gguf(path)
    return tensor_list(file, describe(file))


def test_each_tensor_is_missed(path):
    tensors = tensors_of(path)
    optional = {"0.q_norm", "0.k_norm", "0.attn_post_norm", "0.ffn_post_norm"}
    for name, *_ in tensors:
        if name.startswith("1.") or name in optional:
            continue
        with pytest.raises(ValueError, match=f"tensor {name} is missing"):
            create(path, tensors=[tensor for tensor in tensors if tensor[0] != name])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"type": "Q2_K"}, "unknown tensor type Q2_K"),
        ({"type": ""}, "unknown tensor type"),
        ({"rows": 0}, "impossible shape"),
        ({"rows": 65}, "is 65 x 64, expected 64 x 64"),
        ({"columns": 0}, "impossible shape"),
        ({"columns": 48}, "impossible shape"),
        ({"columns": 32}, "is 64 x 32, expected 64 x 64"),
        ({"rows": 2**32, "columns": 2**32}, "impossible shape"),
        ({"rows": 2**62, "columns": 64}, "impossible shape"),
        ({"rows": 2**32, "columns": 2**28}, "outside the file"),
        ({"offset": 10**9}, "outside the file"),
        ({"offset": 2**64 - 1}, "outside the file"),
        ({"offset": 2**64 - 64 * 36}, "outside the file"),
    ],
)
def test_tensor_that_cannot_be_is_refused(path, changed, why):
    tensors = tensors_of(path)
    at = next(index for index, tensor in enumerate(tensors) if tensor[0] == "1.o")
    fields = dict(zip(("name", "type", "rows", "columns", "offset"), tensors[at], strict=True))
    if "columns" in changed:
        changed = {"type": "Q4_0"} | changed
    tensors[at] = tuple((fields | changed).values())
    with pytest.raises(ValueError, match=why):
        create(path, tensors=tensors)


def test_tensor_that_ends_one_byte_after_the_file_is_refused(path):
    tensors = tensors_of(path)
    last = max(range(len(tensors)), key=lambda index: tensors[index][4])
    *rest, offset = tensors[last]
    tensors[last] = (*rest, offset + 1)
    with pytest.raises(ValueError, match="outside the file"):
        create(path, tensors=tensors)


def test_quantised_vector_is_refused(path):
    tensors = [(name, "Q4_0" if name == "norm" else kind, *rest) for name, kind, *rest in tensors_of(path)]
    with pytest.raises(ValueError, match="norm is Q4_0, expected F32, F16 or BF16"):
        create(path, tensors=tensors)


def test_files_that_cannot_be_mapped_say_so(path, tmp_path):
    (tmp_path / "empty").touch()
    tensors = tensors_of(path)
    config = config_of(describe(read_gguf(path)))
    for name, why in (("missing", "No such file"), ("", "can't map"), ("empty", "the file is empty")):
        with pytest.raises(RuntimeError, match=why):
            _native.Model(config, tensors, str(tmp_path / name), BLOCKS)


def test_watcher_that_raises_ends_the_loading(path):
    seen = []

    def watch(done, total):
        seen.append((done, total))
        if len(seen) == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        create(path, progress=watch)
    assert seen[0][0] == 0 < seen[1][0] < seen[-1][0] < seen[0][1]
    seen.clear()
    with pytest.raises(InterruptedError):
        create(path, progress=watch, threads=2)


def test_unknown_matrix_has_no_values(unharmed):
    with pytest.raises(ValueError, match="no matrix 'nothing'"):
        unharmed.model.dequantise("nothing")


# Weights that are no numbers.


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["token_embd", "blk.0.attn_norm", "blk.0.attn_k", "blk.1.ffn_down"])
def test_weights_that_are_no_numbers_give_logits_that_are_none(tmp_path, name, value, isa):
    path = write_tiny(tmp_path / "a", "llama", quant="F32")
    info = read_gguf(path).tensors[f"{name}.weight"]
    with path.open("r+b") as file:
        file.seek(info.offset)
        file.write(np.full(info.shape, value, "<f4").tobytes())
    logits, _ = Native(path, isa=isa, threads=2).run(Rows.chain([1, 2, 3]), [0], [[0]])
    assert not np.isfinite(logits).any()


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("quant", ["Q4_0", "Q5_1", "Q8_0", "Q6_K"])
def test_any_bytes_as_weights_are_no_trouble(tmp_path, quant, isa):
    """Random scales, infinite ones and NaNs among them."""
    path = write_tiny(tmp_path / "a", "qwen2", quant=quant, dim=256, ff=256, heads=16, kv_heads=4)
    file = read_gguf(path)
    rng = np.random.default_rng(1)
    with path.open("r+b") as out:
        for info in file.tensors.values():
            out.seek(info.offset)
            out.write(rng.bytes(info.nbytes))
    logits, _ = Native(path, isa=isa, threads=2).run(Rows.chain(range(70)), [0], [[0, 1]])
    assert logits.shape == (70, 300)


@pytest.mark.parametrize(
    "change", [(0, np.nan, 1.0), (0, 1e4, np.inf), (0, 0.0, 1.0), (0, -1.0, 1.0), (0, 1e4, 1e300)]
)
def test_angles_that_are_no_numbers_are_no_trouble(path, change):
    model = create(path, {"layers": [change] * 2})
    assert model.forward(**GOOD)[0].shape == (1, 300)


def test_rope_factors_must_be_positive(tmp_path):
    path = write_tiny(tmp_path / "a", "llama", rope_factors=True)
    info = read_gguf(path).tensors["rope_freqs.weight"]
    for value in (0.0, -1.0, np.nan):
        with path.open("r+b") as file:
            file.seek(info.offset)
            file.write(np.full(info.shape, value, "<f4").tobytes())
        with pytest.raises(ValueError, match="not positive"):
            Native(path)


def test_vocabulary_of_one_is_a_matrix_too(path):
    tensors = [
        (name, kind, 1 if name == "embed" else rows, *rest) for name, kind, rows, *rest in tensors_of(path)
    ]
    model = create(path, {"vocab": 1}, tensors)
    logits, _ = model.forward(**GOOD | {"tokens": int32s([0, 0, 0])})
    assert logits.shape == (1, 1)
