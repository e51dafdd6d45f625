"""The twin against Transformers in float32, on tiny random models with the same weights, and on real ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from altered import with_metadata
from tiny import write_tiny

from foredraft.models.cache import model_path
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.twin import twin_forward, twin_hidden, twin_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
WINDOW = 16
LENGTH = 5 * WINDOW + 3
PARTS = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
GEMMA_PARTS = PARTS | {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
FRAME = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight", "norm": "model.norm.weight"}


def transformers_state(spec, weights):
    """The weights as Transformers has them: its names, its order of q and k rows, gemma's norms less one."""
    parts = GEMMA_PARTS if spec.family == "gemma3" else PARTS
    state = {}
    for canonical, weight in weights.items():
        layer, _, part = canonical.partition(".")
        if canonical == "rope_factors":
            continue
        if spec.rope_interleaved and part in ("q", "k"):
            weight = apart(weight, spec.head_dim)
        if spec.family == "gemma3" and canonical.endswith("norm"):
            weight = weight - 1
        name = f"model.layers.{layer}.{parts[part]}" if part else FRAME[canonical]
        state[name] = torch.from_numpy(np.ascontiguousarray(weight))
    return state


def apart(weight, head_dim):
    """From rows in pairs that rope turns together to the first halves of all pairs, then the second."""
    pairs = weight.reshape(-1, head_dim // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def transformers_model(spec, weights, tied, **more):
    kinds = {"llama": "Llama", "qwen2": "Qwen2", "gemma3": "Gemma3Text"}
    config = getattr(transformers, f"{kinds[spec.family]}Config")(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        intermediate_size=spec.ff,
        num_hidden_layers=len(spec.layers),
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.eps,
        tie_word_embeddings=tied,
        attn_implementation="eager",
        **more,
    )
    name = {"gemma3": "Gemma3ForCausalLM"}.get(spec.family, f"{kinds[spec.family]}ForCausalLM")
    model = getattr(transformers, name)(config).to(torch.float32).eval()
    model.load_state_dict(transformers_state(spec, weights), strict=True)
    return model


def assert_agree(spec, weights, model):
    tokens = np.random.default_rng(7).integers(0, spec.vocab, LENGTH)
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens)[None], output_hidden_states=True)
    ours = twin_forward(spec, weights, tokens)
    assert ours.std() > 1  # logits that differ, so that agreement says something
    np.testing.assert_allclose(ours, theirs.logits[0].numpy(), rtol=0, atol=1e-4)
    # Transformers gives the embedding first, and the last layer only after the final norm.
    hidden = twin_hidden(spec, weights, tokens)
    assert len(hidden) == len(spec.layers)
    for own, other in zip(hidden[:-1], theirs.hidden_states[1:-1], strict=True):
        np.testing.assert_allclose(own, other[0].numpy(), rtol=0, atol=1e-4)


def load(path, metadata=None):
    file = with_metadata(read_gguf(path), metadata or {})
    spec = describe(file)
    return spec, twin_weights(file, spec)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quant", ["F32", "Q4_0", "Q8_0"])
def test_llama_agrees_with_transformers(tmp_path, tied, quant):
    spec, weights = load(write_tiny(tmp_path / "a", "llama", seed=1, layers=3, tied=tied, quant=quant))
    assert_agree(spec, weights, transformers_model(spec, weights, tied, rope_theta=1e4))


def test_llama_with_linear_scaling_agrees(tmp_path):
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    spec, weights = load(write_tiny(tmp_path / "a", "llama", seed=2), scaling)
    more = {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert_agree(spec, weights, transformers_model(spec, weights, True, **more))


def test_llama_3s_frequencies_agree(tmp_path):
    spec, weights = load(write_tiny(tmp_path / "a", "llama", seed=3, rope_factors=True))
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = transformers_model(spec, weights, True, rope_theta=1e4, rope_scaling=scaling)
    plain = 1e4 ** (-np.arange(spec.head_dim // 2) / (spec.head_dim // 2))
    weights["rope_factors"] = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert weights["rope_factors"].max() > 7
    assert_agree(spec, weights, model)


@pytest.mark.parametrize("tied", [True, False])
def test_qwen2_agrees_with_transformers(tmp_path, tied):
    spec, weights = load(write_tiny(tmp_path / "a", "qwen2", seed=4, layers=3, tied=tied, quant="Q5_1"))
    assert_agree(spec, weights, transformers_model(spec, weights, tied, rope_theta=1e4))


@pytest.mark.parametrize("tied", [True, False])
def test_gemma3_agrees_beyond_its_sliding_windows(tmp_path, tied):
    path = write_tiny(
        tmp_path / "a", "gemma3", seed=5, layers=7, tied=tied, quant="F16", window=WINDOW, period=None
    )
    spec, weights = load(path)
    assert {layer.window for layer in spec.layers} == {0, WINDOW}
    assert_agree(spec, weights, gemma3_model(spec, weights, tied))


def test_gemma3_with_linear_scaling_agrees(tmp_path):
    path = write_tiny(tmp_path / "a", "gemma3", seed=6, layers=6, quant="F16", window=WINDOW, period=None)
    scaling = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    spec, weights = load(path, scaling)
    linear = {"rope_type": "linear", "factor": 8.0}
    assert_agree(spec, weights, gemma3_model(spec, weights, True, rope_scaling=linear))


def gemma3_model(spec, weights, tied, **more):
    return transformers_model(
        spec,
        weights,
        tied,
        sliding_window=WINDOW,
        query_pre_attn_scalar=spec.head_dim,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        **more,
    )


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="needs the reference values beside the repository")
@pytest.mark.parametrize(
    "name",
    [
        "smollm2-135m",
        pytest.param("gemma3-270m", marks=pytest.mark.models),
        pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.models),
    ],
)
def test_real_models_have_the_reference_logprobs(name):
    if not model_path(name).is_file():
        pytest.skip(f"needs {name} (foredraft pull {name})")
    reference = json.loads((GOLDEN / f"{name}.json").read_text())["greedy"]["facts"]
    spec, weights = load(model_path(name))
    tokens = reference["prompt_ids"] + reference["ids"]
    logits = twin_forward(spec, weights, tokens)[len(reference["prompt_ids"]) - 1 : -1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    tops = [[token for token, _ in top] for top in reference["top_logprobs"]]
    ours = np.take_along_axis(logprobs, np.array(tops), axis=1)
    # They are given to four places, from float32.
    np.testing.assert_allclose(ours, reference["float32_logprobs"], rtol=0, atol=2e-4)
