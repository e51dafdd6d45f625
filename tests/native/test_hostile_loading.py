"""What loading refuses, with a plain error: options, configurations and tensors that cannot be. Weights that
are no numbers it takes; they give logits that are none.
"""

import numpy as np
import pytest
from bare_native import Native
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import config_of, tensor_list

BLOCKS = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("hostile") / "tiny.gguf", "gemma3", quant=("Q4_0", "F16"))


def step(model):
    """Logits of one row: token 0 as a sequence's first."""
    zero, none = int32s([0]), int32s([])
    return model.forward(zero, int32s([-1]), zero, zero, np.zeros((1, 1), np.int32), zero, none, none)[0]


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


def test_model_without_a_cache_runs_nothing(path):
    model = create(path, kv_blocks=0)
    with pytest.raises(ValueError, match="block id"):
        step(model)


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
    assert step(model).shape == (1, 300)


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
    assert step(model).shape == (1, 1)
