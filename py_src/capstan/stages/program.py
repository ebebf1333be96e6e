"""What the sampler on the GPU is given for a set of options: parameters, passes, and WGSL of the active stages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .stage import Stage

__all__ = ["MAX_EOS_TOKENS", "SamplerProgram", "sampler_program"]

MAX_EOS_TOKENS = 16
"""How many end-of-sequence ids fit into the parameters."""

# A uniform buffer's arrays have elements of 16 bytes.
_VECTOR = 4


@dataclass(frozen=True)
class SamplerProgram:
    """Kernels are made from the text, which only the set of active stages changes, never the values of options."""

    words: bytes
    """`params`, a uniform buffer: u32 words as `wgsl` declares them."""
    passes: tuple[str, ...]
    """Kernels of a step in order, by the names in web/src/gpu/sampler.ts; `count` and `weight` are four rounds each."""
    wgsl: str
    """`struct Params`, and what the active stages do."""
    counts: bool
    """Whether an active stage needs the row's token counts."""


def sampler_program(stages: Sequence[Stage], options: Any, vocab: int, first_row: int = 0) -> SamplerProgram:
    """The program for `options` over `vocab` logits, of rows that draw as those from `first_row` on. A top_k of at
    least `vocab` is off."""
    words = {"pad": options.pad_token_id, "eos_count": len(options.eos_token_ids), "first_row": first_row}
    for stage in stages:
        words |= {name: value(options) for name, value in stage.words.items()}
    if words["top_k"] >= vocab:
        words["top_k"] = 0
    active = [stage for stage in stages if stage.active(options)]
    counts = any(stage.counts for stage in active)
    padding = -len(words) % _VECTOR
    eos = [*options.eos_token_ids, *[0] * (MAX_EOS_TOKENS - len(options.eos_token_ids))]
    fields = "".join(f"  {name}: u32,\n" for name in words)
    pads = "".join(f"  unused_{index}: u32,\n" for index in range(padding))
    struct = f"struct Params {{\n{fields}{pads}  eos: array<vec4<u32>, {MAX_EOS_TOKENS // _VECTOR}>,\n}}\n"
    return SamplerProgram(
        words=array("I", [*words.values(), *[0] * padding, *eos]).tobytes(),
        passes=_passes(options, words),
        wgsl=struct + _functions(active, counts),
        counts=counts,
    )


def _passes(options: Any, words: dict[str, int]) -> tuple[str, ...]:
    if options.greedy:
        return ("max", "greedy")
    cuts = [*["count"] * (words["top_k"] != 0), *["weight"] * (words["top_p"] != 0)]
    return ("max", *cuts, "sums", "draw")


def _functions(active: Sequence[Stage], counts: bool) -> str:
    """`edited` and `kept`, which call the active stages in order, `COUNTED`, and the stages' own functions."""
    edits = [stage for stage in active if stage.edit_wgsl]
    weighs = [stage for stage in active if stage.weigh_wgsl]
    edited = "".join(f"  key = edit_{stage.name}(row, token, key);\n" for stage in edits)
    kept = "".join(f"  weight = weigh_{stage.name}(weight);\n" for stage in weighs)
    return (
        f"const COUNTED = {str(counts).lower()};\n"
        f"fn edited(row: u32, token: u32, given: u32) -> u32 {{\n  var key = given;\n{edited}  return key;\n}}\n"
        f"fn kept(given: u32) -> u32 {{\n  var weight = given;\n{kept}  return weight;\n}}\n"
        + "".join(stage.edit_wgsl for stage in edits)
        + "".join(stage.weigh_wgsl for stage in weighs)
    )
