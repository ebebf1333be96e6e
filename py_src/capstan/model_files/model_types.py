"""Lists the architectures in `model.type` of genai_config.json: the names that run, and the reasons why others do not
run.

The name does not affect how a model runs: the graph determines that. It identifies models that consist of more than one
text decoder, or whose layers have more than one key and one value cache each, or a state that each run overwrites.
"""

from __future__ import annotations

from ..errors import UnsupportedModelError

__all__ = [
    "HEARD_REPOSITORIES",
    "HEARD_TYPES",
    "MOONSHINE",
    "QWEN_TYPES",
    "REFUSED_TYPES",
    "SEEN_TYPES",
    "SUPPORTED_TYPES",
    "UNSEEN",
    "require_type",
]

# The decoders of text that onnxruntime-genai 0.18 accepts, without those below; "decoder" stands for any.
ACCEPTED = (
    "chatglm decoder ernie4_5 gemma gemma2 gemma3_text gemma3_vl_text gemma4_text gptoss granite granitemoehybrid "
    "hunyuandensev1 internlm2 lfm2 lfm2_audio_text lfm2_moe lfm2_vl_text llama mistral mistral3_text nemotron olmo phi "
    "phi3 phi3small phimoe qwen2 qwen2_5_vl_text qwen3 qwen3_5_moe_text qwen3_5_text qwen3_vl_text smollm3"
)
# Names for the same architectures in Hugging Face's config.json; hand-written genai_config.json files use them.
OTHER_NAMES = "gpt-oss hunyuan_v1_dense ministral3 olmo2"
SUPPORTED_TYPES = tuple(sorted(f"{ACCEPTED} {OTHER_NAMES}".split()))
HEARD_TYPES = ("whisper",)
"""Decoders with an encoder of sound."""
MOONSHINE = "moonshine"
HEARD_REPOSITORIES = (*HEARD_TYPES, MOONSHINE)
"""Decoders that run from repositories in Transformers.js' layout, by config.json's names."""
QWEN_TYPES = ("fara", "qwen2_5_vl")
SEEN_TYPES = (*QWEN_TYPES, "gemma3")
"""Decoders with a vision model and an embedding graph; QWEN_TYPES take pictures of any size, in patches."""

VISION = "a vision model beside the decoder"
AUDIO = "a speech model beside the decoder"
ENCODER = "an encoder"

REFUSED_TYPES = {
    "gpt2": "keys and values in one cache",
    **dict.fromkeys(("gemma4", "lfm2_vl", "mistral3", "phi3v", "qwen3_5"), VISION),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_vl", "videochat_flash_qwen"), VISION),
    **dict.fromkeys(("gemma4_unified", "phi4mm"), "vision and speech models beside the decoder"),
    "lfm2_audio": AUDIO,
    **dict.fromkeys(("marian-ssru", "nemotron_speech", "parakeet_tdt", "streaming_enc_dec_asr"), ENCODER),
    "decoder-pipeline": "a decoder in several files",
}
"""Other names that onnxruntime-genai 0.18 knows, and the parts of such models that Capstan does not run."""

UNSEEN = {
    **dict.fromkeys(("gemma4", "gemma4_unified"), "the transform of its pictures"),
    "lfm2_vl": "pictures in patches of any number (PatchImage)",
    "mistral3": "pictures of any size (Pixtral's transform)",
    **dict.fromkeys(("phi3v", "phi4mm"), "crops of pictures (Phi3ImageTransform, Phi4 transforms)"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "positions on three interleaved axes"),
    "qwen3_vl": "positions on three interleaved axes, and features in deeper layers (deepstack), which exports lack",
}
"""The missing parts, by the type of a model that sees."""

TEXT_OF = {
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text",
    "lfm2_audio": "lfm2_audio_text",
    "lfm2_vl": "lfm2_vl_text",
    "mistral3": "mistral3_text",
    "phi3v": "phi3",
    "phi4mm": "phi3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "videochat_flash_qwen": "qwen2",
}
"""The name of the decoder alone, if Capstan runs it."""


def require_type(where: str, model_type: str) -> None:
    """Raise UnsupportedModelError, with the unsupported parts and the remedy, if models of this type do not run;
    `where` is the field.
    """
    if model_type in (*SUPPORTED_TYPES, *HEARD_TYPES, *SEEN_TYPES):
        return
    runs = f"Capstan runs decoders with a key/value cache: {', '.join((*SUPPORTED_TYPES, *HEARD_TYPES, *SEEN_TYPES))}"
    sees = f"; Capstan lacks the following for its pictures: {UNSEEN[model_type]}" if model_type in UNSEEN else ""
    if model_type in TEXT_OF:
        alone = f'"{TEXT_OF[model_type]}"'
        remedy = f"export the decoder with its embedding (without exclude_embeds), as a model of type {alone}"
        raise UnsupportedModelError(f'{where}: "{model_type}" has {REFUSED_TYPES[model_type]}{sees}; {remedy}')
    if model_type in REFUSED_TYPES:
        raise UnsupportedModelError(f'{where}: "{model_type}" has {REFUSED_TYPES[model_type]}{sees}; {runs}')
    raise UnsupportedModelError(
        f'{where}: "{model_type}" is not a known type; {runs}; for another decoder of that kind write "decoder"'
    )
