"""Lists the families of models in GGUF files, by the name that a file gives its architecture.

`FAMILIES` has for each its type in genai_config.json, and the differences of its layers from llama's. The meaning of
keys and of missing keys is that of llama.cpp's loader (src/models/*.cpp), except for phi3's window, which llama.cpp
ignores: transformers and the model builder of onnxruntime-genai have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from ...errors import UnsupportedModelError
from .gguf_file import GgufFile

__all__ = ["FAMILIES", "WHOLE", "Family", "family_of", "require_computed", "require_states"]

WHOLE = -1
"""The window of a layer that attends to all positions."""
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
LOCAL_BASE = "rope.freq_base_swa"
NO_ROTATION_STEP = 4
"""One of this number of layers of SmolLM3 rotates no heads."""


def whole(file: GgufFile, layers: int) -> Sequence[int]:
    return [WHOLE] * layers


def phi_windows(file: GgufFile, layers: int) -> Sequence[int]:
    """The windows of phi3; 0, as in Phi-4, means no window."""
    return [file.integer(file.key(WINDOW), WHOLE, least=WHOLE) or WHOLE] * layers


def gemma2_windows(file: GgufFile, layers: int) -> Sequence[int]:
    window = file.integer(file.key(WINDOW), 4096)
    return [window if local else WHOLE for local in local_layers(file, layers, 2)]


def gpt_oss_windows(file: GgufFile, layers: int) -> Sequence[int]:
    window = file.integer(file.key(WINDOW))
    return [window if local else WHOLE for local in local_layers(file, layers, 2)]


def gemma3_windows(file: GgufFile, layers: int) -> Sequence[int]:
    """The windows of gemma3. Without a window, or with a window of 0, the keys about it have no effect."""
    window = file.integer(file.key(WINDOW), 0, least=0)
    local = local_layers(file, layers, 6)
    gemma3_local_rotation(file, 1.0, 1.0)
    return [window if window and each else WHOLE for each in local]


def gemma4_windows(file: GgufFile, layers: int) -> Sequence[int]:
    """The windows of gemma4, which the file lists layer by layer."""
    key, window = file.key(PATTERN), file.integer(file.key(WINDOW))
    if not isinstance(file.value(key), tuple):
        raise file.error(key, f"{layers} truth values, one for each layer")
    return [window if local else WHOLE for local in local_layers(file, layers, 0)]


def local_layers(file: GgufFile, layers: int, every: int) -> Sequence[bool]:
    """Whether each layer has the window: all except the last of each `every` layers, unless the file gives another
    number (0 means all layers), or a list of layers.
    """
    key = file.key(PATTERN)
    described = file.value(key, every)
    if isinstance(described, tuple):
        if len(described) != layers or not all(type(each) in (bool, int) and each in (0, 1) for each in described):
            raise file.error(key, f"{layers} truth values, one for each layer, or an integer from 0")
        return [bool(each) for each in described]
    every = file.integer(key, every, least=0)
    return [every == 0 or layer % every < every - 1 for layer in range(layers)]


def with_key_heads(file: GgufFile, layers: int) -> Sequence[bool]:
    heads = file.of_layers(file.key("attention.head_count"), layers)
    return [each > 0 for each in file.by_layer(file.key("attention.head_count_kv"), layers, heads, least=0)]


def without_recurrence(file: GgufFile, layers: int) -> Sequence[bool]:
    """The layers that the file does not list as recurrent; without a list the last of each group of
    `full_attention_interval` layers.
    """
    key = file.key("attention.recurrent_layers")
    every = file.integer(file.key("full_attention_interval"), 4)
    described = file.value(key)
    if described is None:
        return [layer % every == every - 1 for layer in range(layers)]
    if not isinstance(described, tuple) or len(described) < layers or {type(each) for each in described} - {bool, int}:
        raise file.error(key, f"{layers} truth values or more, one for each layer")
    return [not each for each in described[:layers]]


def of_predicted_layers(file: GgufFile, layers: int) -> set[str]:
    """The tensors of the layers after the decoder's layers, which predict tokens for speculation."""
    front = tuple(f"blk.{layer}." for layer in range(layers, file.integer(file.key("block_count"))))
    return {name for name in file.tensors if name.startswith(front)} if front else set()


def own_local_base(file: GgufFile, base: float, factor: float) -> tuple[float, float]:
    return file.real(file.key(LOCAL_BASE), base, above=1.0), factor


def gemma3_local_rotation(file: GgufFile, base: float, factor: float) -> tuple[float, float]:
    return file.real(file.key(LOCAL_BASE), 10000.0, above=1.0), 1.0


def gemma_scale(largest: int) -> Callable[[GgufFile, int], float]:
    """The scale of queries: from the head size, except for the largest model, recognised by its number of layers."""

    def scale(file: GgufFile, head_size: int) -> float:
        layers = file.integer(file.key("block_count"))
        if layers != largest:
            return 1 / sqrt(head_size)
        heads = file.of_layers(file.key("attention.head_count"), layers)
        return 1 / sqrt(file.integer(file.key("embedding_length")) // heads)

    return scale


def width_root(file: GgufFile) -> float:
    return sqrt(file.integer(file.key("embedding_length")))


def scale_or_one(name: str) -> Callable[[GgufFile], float]:
    """A function that reads the factor of that name from a file; it is 1 if the file has none or 0."""
    return lambda file: file.real(file.key(name), 0.0) or 1.0


def logits_divided(file: GgufFile) -> float:
    key = file.key("logit_scale")
    scale = file.real(key)
    if not scale:
        raise file.error(key, "a finite number other than 0")
    return 1 / scale


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts. Each expert computes `gate sigmoid(alpha gate) (up + beta)` before its last product; the
    shares of the chosen experts add up to 1.
    """

    alpha: float = 1.0
    beta: float = 0.0
    limit: float = 0.0
    """The limit of a gate, and of the absolute value of up; 0 for none."""
    shares_inner: bool = False
    """Whether feed_forward_length, without other keys, is the sum over the chosen experts."""
    gating: int = 1
    """The number of this function in expert_gating_func: 1 for a softmax over all experts, 3 over the chosen ones."""

    def require_known(self, file: GgufFile) -> None:
        """Raise ConfigError for keys that define the experts' shares in another way."""
        file.integer(file.key("expert_gating_func"), self.gating, least=self.gating, most=self.gating)
        for name, known in (("expert_weights_norm", (True,)), ("expert_weights_scale", (0.0, 1.0))):
            key = file.key(name)
            if file.value(key, known[0]) not in known:
                raise file.error(key, " or ".join(map(str, known)), "take an ONNX export of the model")


@dataclass(frozen=True)
class Family:
    """A family, with the differences of its layers from llama's."""

    type: str
    """The type of its models in genai_config.json."""
    neighbours: bool = False
    """Whether rotary embedding rotates neighbours, so that the rows of q and k alternate between the halves of a
    head.
    """
    divisors: bool = False
    """Whether rotary frequencies may be divided by factors of the file."""
    whole_divisors: bool = False
    """Whether only the frequencies of layers without a window are divided."""
    rotated: Callable[[GgufFile, int], bool] = lambda file, layer: True
    """Whether a layer rotates its heads."""
    gelu: bool = False
    """Whether the gate is GELU in place of SiLU."""
    sandwich: bool = False
    """Whether there are also norms after attention and after the MLP."""
    embedding_scale: Callable[[GgufFile], float] = lambda file: 1.0
    residual_scale: Callable[[GgufFile], float] = lambda file: 1.0
    logits_scale: Callable[[GgufFile], float] = lambda file: 1.0
    attention_scale: Callable[[GgufFile, int], float] = lambda file, head_size: 1 / sqrt(head_size)
    windows: Callable[[GgufFile, int], Sequence[int]] = whole
    """The window of each layer, given their number; -1 for all positions."""
    local_rotation: Callable[[GgufFile, float, float], tuple[float, float]] | None = None
    """(base, factor) of rotary frequencies in layers with a window, given those of the other layers, if they may
    differ.
    """
    attention_cap: Callable[[GgufFile], float] = lambda file: 0.0
    """The soft cap of scores; 0 for none."""
    logits_cap: Callable[[GgufFile], float] = lambda file: 0.0
    joined: bool = False
    """Whether one tensor has q, k and v, and another has gate and up."""
    sizes_by_layer: bool = False
    """Whether layers may differ in the sizes of heads and MLPs, read other layers' caches, and have per-layer
    embeddings.
    """
    value_norm: bool = False
    """Whether heads of v are normed like those of q and k, without weights; without a tensor, v is k before that
    norm.
    """
    gated: bool = False
    """Whether a gate follows each head of q."""
    mlp_norm: str = "ffn_norm"
    """The tensor of the norm before the MLP."""
    attentive: Callable[[GgufFile, int], Sequence[bool]] = lambda file, layers: [True] * layers
    """Whether each layer has attention, given their number."""
    states: str = ""
    """The kind of the layers without attention; empty if there are none."""
    unused: Callable[[GgufFile, int], set[str]] = lambda file, layers: set()
    """Tensors that a decoder does not need, given its number of layers."""
    last_norm: str = "output_norm"
    """The tensor of the norm before the logits."""
    mixture: Mixture | None = None
    """The experts in place of the MLP, if there are any."""


GRANITE = Family(
    "granite",
    neighbours=True,
    divisors=True,
    rotated=lambda file, layer: file.flag(file.key("rope.scaling.finetuned"), True),
    embedding_scale=scale_or_one("embedding_scale"),
    residual_scale=scale_or_one("residual_scale"),
    logits_scale=logits_divided,
    attention_scale=lambda file, head_size: file.real(file.key("attention.scale"), 0.0) or 1 / sqrt(head_size),
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", neighbours=True, divisors=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("decoder", mixture=Mixture(shares_inner=True)),
    "smollm3": Family("smollm3", neighbours=True, rotated=lambda file, layer: (layer + 1) % NO_ROTATION_STEP != 0),
    "gemma2": Family(
        "gemma2",
        gelu=True,
        sandwich=True,
        embedding_scale=width_root,
        attention_scale=gemma_scale(46),
        windows=gemma2_windows,
        local_rotation=own_local_base,
        attention_cap=lambda file: file.real(file.key("attn_logit_softcapping"), 50.0, above=0.0),
        logits_cap=lambda file: file.real(file.key("final_logit_softcapping"), 30.0, above=0.0),
    ),
    "gemma3": Family(
        "gemma3_text",
        gelu=True,
        sandwich=True,
        embedding_scale=width_root,
        attention_scale=gemma_scale(62),
        windows=gemma3_windows,
        local_rotation=gemma3_local_rotation,
        logits_cap=lambda file: file.real(file.key("final_logit_softcapping"), 0.0),
    ),
    "gemma4": Family(
        "gemma4_text",
        gelu=True,
        sandwich=True,
        whole_divisors=True,
        sizes_by_layer=True,
        value_norm=True,
        embedding_scale=width_root,
        attention_scale=lambda file, head_size: 1.0,
        windows=gemma4_windows,
        local_rotation=gemma3_local_rotation,
        logits_cap=lambda file: file.real(file.key("final_logit_softcapping"), 30.0),
    ),
    "phi3": Family("phi3", divisors=True, windows=phi_windows, joined=True),
    "granite": GRANITE,
    "granitemoe": replace(GRANITE, type="granitemoehybrid", mixture=Mixture()),
    "gpt-oss": Family(
        "gptoss",
        windows=gpt_oss_windows,
        local_rotation=own_local_base,
        mlp_norm="post_attention_norm",
        mixture=Mixture(alpha=1.702, beta=1.0, limit=7.0, gating=3),
    ),
    "lfm2": Family(
        "lfm2", windows=phi_windows, attentive=with_key_heads, states="convolutions", last_norm="token_embd_norm"
    ),
    "qwen35": Family(
        "qwen3_5_text",
        gated=True,
        mlp_norm="post_attention_norm",
        attentive=without_recurrence,
        states="delta nets",
        unused=of_predicted_layers,
    ),
}

ONNX_ONLY: Mapping[str, str] = {
    **dict.fromkeys(("qwen2moe", "lfm2moe", "qwen35moe"), "a mixture of experts"),
}
"""Families that Capstan runs only from ONNX, and the parts of their layers that its graphs of GGUF files lack."""

NOWHERE: Mapping[str, str] = {"granitehybrid": "recurrent layers (Mamba 2)", "mamba2": "recurrent layers (Mamba 2)"}
"""Families that Capstan does not run, and the parts of their layers that it lacks. Granite 4 without such layers is
granite."""

HARMLESS = frozenset(
    (
        *("vocab_size", "tensor_data_layout", "pooling_type", "rope.scaling.finetuned", "attention.layer_norm_epsilon"),
        *("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_weights_scale"),
        *("expert_weights_norm", "expert_gating_func", "leading_dense_block_count", "mm.tokens_per_image"),
        "rope.dimension_sections",
        *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"),
    )
)
"""Names of keys without effect on the computation of a decoder without experts and recurrent layers."""

NEUTRAL: Mapping[str, float | bool] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.shared_kv_layers": 0,
    WINDOW: 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_count": 0,
    "expert_group_count": 0,
    "expert_group_used_count": 0,
    "nextn_predict_layers": 0,
    "use_parallel_residual": False,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
"""Names of keys without effect at one value."""


def family_of(file: GgufFile) -> Family:
    """The file's family. Raises UnsupportedModelError."""
    found = FAMILIES.get(file.architecture)
    if found is not None:
        return found
    known = ", ".join(FAMILIES)
    why, remedy = "is unknown to Capstan", ", or an ONNX export of the model"
    if file.architecture in ONNX_ONLY:
        why = f"has {ONNX_ONLY[file.architecture]}"
    elif file.architecture in NOWHERE:
        why, remedy = f"has {NOWHERE[file.architecture]}", ""
    raise UnsupportedModelError(
        f"{file.name}: architecture {file.architecture!r} {why}; use a GGUF file of {known}{remedy}"
    )


def require_states(file: GgufFile) -> None:
    """Raise UnsupportedModelError for a family whose layers without attention are not supported."""
    if family_of(file).states != "convolutions":
        raise UnsupportedModelError(
            f"{file.name}: architecture {file.architecture!r} has layers without attention "
            f"({file.key('attention.head_count_kv')} of 0), which are not supported; use a model of the family whose "
            "layers all have attention"
        )


def require_computed(file: GgufFile) -> None:
    """Raise UnsupportedModelError if the file has an unread key below its architecture's name that affects the
    computation.
    """
    for name in file.unread():
        value = file.metadata[file.key(name)]
        neutral = NEUTRAL.get(name)
        same = neutral is not None and value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        if name in HARMLESS or same:
            continue
        shown = repr(value)
        only = "" if neutral is None else f"; only {neutral!r} is"
        raise UnsupportedModelError(
            f"{file.name}: metadata {file.key(name)} ({shown[:60]}) is not supported in a model of "
            f"{file.architecture}{only}; use another file or an ONNX export of the model"
        )
