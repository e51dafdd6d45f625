"""What all families share: which there are, the sizes they state, and what is refused."""

import numpy as np
import pytest
from altered import with_metadata
from tiny import write_tiny

from foredraft.errors import ModelFileError, UnsupportedModelError
from foredraft.models.cache import model_path
from foredraft.models.families import FAMILIES, describe
from foredraft.models.gguf import read_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return read_gguf(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_the_files(tmp_path, family):
    path = write_tiny(
        tmp_path / "a", family, dim=96, layers=3, heads=6, kv_heads=3, head_dim=32, ff=160, vocab=320
    )
    spec = describe(read_gguf(path))
    assert (spec.family, spec.dim, spec.heads, spec.kv_heads, spec.head_dim) == (family, 96, 6, 3, 32)
    assert (spec.ff, spec.vocab, spec.context, len(spec.layers)) == (160, 320, 512, 3)
    assert spec.eps == float(np.float32(1e-6))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_is_the_embedding(tmp_path, family):
    tied = describe(read_gguf(write_tiny(tmp_path / "tied", family)))
    untied = describe(read_gguf(write_tiny(tmp_path / "untied", family, tied=False)))
    assert tied.tensors["head"] == tied.tensors["embed"] == "token_embd.weight"
    assert untied.tensors["head"] == "output.weight"


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_the_registrys_models_are_described(name):
    if not model_path(name).is_file():
        pytest.skip(f"needs {name} (foredraft pull {name})")
    file = read_gguf(model_path(name))
    spec = describe(file)
    assert set(spec.tensors.values()) == file.tensors.keys()
    assert len(spec.layers) == file.metadata[f"{spec.family}.block_count"]


def test_other_families_are_refused_with_those_that_are_supported(tiny):
    file = with_metadata(tiny, {"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        describe(file)


@pytest.mark.parametrize("family", [None, 3, ["llama"]])
def test_a_family_that_is_no_name_is_refused(tiny, family):
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        describe(with_metadata(tiny, {"general.architecture": family}))


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "block_count",
        "context_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 2**31, 2**63, "64", True, 64.0])
def test_senseless_sizes_are_refused(tiny, key, value):
    with pytest.raises(ModelFileError, match=key):
        describe(with_metadata(tiny, {f"llama.{key}": value}))


@pytest.mark.parametrize("value", [None, 0.0, -1e-6, float("nan"), float("inf"), "1e-6"])
def test_a_senseless_epsilon_is_refused(tiny, value):
    with pytest.raises(ModelFileError, match="layer_norm_rms_epsilon"):
        describe(with_metadata(tiny, {"llama.attention.layer_norm_rms_epsilon": value}))


@pytest.mark.parametrize("key", ["embedding_length", "block_count", "context_length", "feed_forward_length"])
def test_missing_sizes_are_refused(tiny, key):
    with pytest.raises(ModelFileError, match=f"llama.{key} is missing"):
        describe(with_metadata(tiny, {f"llama.{key}": None}))


def test_sizes_that_differ_between_layers_are_refused(tiny):
    file = with_metadata(tiny, {"llama.attention.head_count": np.array([4, 2])})
    with pytest.raises(UnsupportedModelError, match="differs between layers"):
        describe(file)


def test_heads_that_do_not_go_into_each_other_are_refused(tiny):
    with pytest.raises(ModelFileError, match="4 heads cannot share 3"):
        describe(with_metadata(tiny, {"llama.attention.head_count_kv": 3}))
    with pytest.raises(ModelFileError, match="do not divide"):
        describe(with_metadata(tiny, {"llama.attention.head_count": 6, "llama.attention.key_length": None}))
    with pytest.raises(ModelFileError, match="odd size 17"):
        describe(with_metadata(tiny, {f"llama.attention.{name}_length": 17 for name in ("key", "value")}))


def test_the_head_size_follows_from_the_dimension_where_it_is_not_stated(tiny):
    file = with_metadata(tiny, {"llama.attention.key_length": None, "llama.attention.value_length": None})
    assert describe(file).head_dim == 16


@pytest.mark.parametrize("key", ["attention.value_length", "rope.dimension_count"])
def test_heads_of_two_sizes_are_refused(tiny, key):
    with pytest.raises(UnsupportedModelError, match=f"{key} is 8, but heads have 16"):
        describe(with_metadata(tiny, {f"llama.{key}": 8}))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("expert_count", 8, "mixture of experts"),
        ("attn_logit_softcapping", 50.0, "soft-capped attention"),
        ("final_logit_softcapping", 30.0, "soft-capped logits"),
        ("logit_scale", 8.0, "scaled logits"),
        ("residual_scale", 0.22, "scaled residuals"),
        ("embedding_scale", 12.0, "scale of embeddings"),
        ("attention.scale", 0.0156, "attention scale"),
        ("attention.clamp_kqv", 8.0, "clamped attention"),
        ("attention.max_alibi_bias", 8.0, "ALiBi"),
        ("attention.causal", False, "later tokens"),
        ("pooling_type", 1, "embedding model"),
        ("rope.scaling.attn_factor", 1.2, "with rope"),
        ("expert_count", np.array([8, 8]), "mixture of experts"),
    ],
)
def test_what_would_change_the_result_is_refused(tiny, key, value, words):
    with pytest.raises(UnsupportedModelError, match=words):
        describe(with_metadata(tiny, {f"llama.{key}": value}))


def test_the_same_keys_are_accepted_where_they_change_nothing(tiny):
    neutral = {
        "expert_count": 0,
        "logit_scale": 1.0,
        "attention.causal": True,
        "final_logit_softcapping": 0.0,
    }
    assert describe(with_metadata(tiny, {f"llama.{key}": value for key, value in neutral.items()}))


def test_more_tokens_than_embeddings_are_refused(tiny):
    tokens = [str(i) for i in range(301)]
    with pytest.raises(ModelFileError, match="301 tokens, but an embedding table of 300 rows"):
        describe(with_metadata(tiny, {"tokenizer.ggml.tokens": tokens}))


@pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic", 3, np.arange(2)])
def test_rope_scalings_other_than_linear_are_refused(tiny, kind):
    with pytest.raises(UnsupportedModelError, match="rope scaling"):
        describe(with_metadata(tiny, {"llama.rope.scaling.type": kind}))


@pytest.mark.parametrize(
    ("stated", "scale"),
    [
        ({}, 1.0),
        ({"scaling.type": "linear"}, 1.0),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 0.25),
        ({"scaling.factor": 4.0}, 0.25),
        ({"scale_linear": 2.0}, 0.5),
        ({"scaling.factor": 0.0}, 1.0),
        ({"scaling.type": "none", "scaling.factor": 4.0}, 1.0),
    ],
)
def test_linear_rope_scaling_is_honoured(tiny, stated, scale):
    spec = describe(with_metadata(tiny, {f"llama.rope.{key}": value for key, value in stated.items()}))
    assert {layer.rope_scale for layer in spec.layers} == {scale}


@pytest.mark.parametrize("value", [-1.0, float("nan"), 5e-324, "4"])
def test_senseless_rope_values_are_refused(tiny, value):
    for key in ("rope.scaling.factor", "rope.freq_base"):
        with pytest.raises(ModelFileError, match=key):
            describe(with_metadata(tiny, {f"llama.{key}": value}))
