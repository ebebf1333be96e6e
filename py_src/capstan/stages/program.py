"""Makes the sampler's program for a set of options: parameters, memory, passes, and the WGSL of active stages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .stage import Stage

__all__ = ["LEAST_END_TOKENS", "Drafting", "SamplerProgram", "sampler_program"]

LEAST_END_TOKENS = 32
"""The least room for ids that end a sequence; more ids take the next power of two."""

# A uniform buffer's arrays have elements of 16 bytes.
_VECTOR = 4
_IN_SEQUENCE = 1 << 31
"""This bit of a token's count is set if the sequence has the token, picked or not. The other bits count its picks."""


@dataclass(frozen=True)
class SamplerProgram:
    """Kernels are made from the text, which depends only on the set of active stages and the room for end ids.

    The sampler's memory is one buffer, u32: `table`, then `row_words` for each row: token counts [vocab], bans [vocab]
    (the length at which a token is banned, plus 1), the mask of tokens that can be picked [vocab / 32], the stages' own
    words, the drafts of a step, and the number of padding tokens with the sequence's ids [capacity]; each only if a
    stage or drafting needs it. The host sets a row after the caller changed its sequence, and the mask before each pick
    unless the pass `constrain` does; picks update the row.
    """

    words: bytes
    """`params`, a uniform buffer: u32 words as `wgsl` declares them."""
    passes: tuple[str, ...]
    """Kernels of a step in order, by the names in web/src/worker/gpu/sampler_program.ts; `count` and `weight` are four
    rounds each."""
    wgsl: str
    """`struct Params`, and the functions of the active stages."""
    ban_wgsl: str
    """Additional code of the stages in the pass `ban`."""
    mask_wgsl: str
    """Additional code of the stages in the pass `constrain`."""
    end_wgsl: str
    """Code of the stages after a token's pick."""
    table: bytes
    """Constants of the active stages."""
    row_words: int
    """The number of words of a row's memory; 0 if no stage uses any."""
    counts: bool
    """Whether a row's memory has token counts."""
    allowed_at: int | None
    """The offset of the mask in a row's memory, which the host sets before each pick; None if no stage uses it."""
    own_at: int | None
    """The offset of a stage's own words in a row's memory, which the host sets with the sequence; None if there are
    none.
    """
    sequence: bool
    """Whether a row's memory has the sequence's ids."""
    drafts: int
    """The number of drafts of a step that fit into a row's memory."""
    vocab: int
    capacity: int

    def row(self, tokens: Sequence[int], prompt: int, padding: int = 0, allowed: bytes = b"") -> bytes:
        """A row's memory for a sequence, of which the first `prompt` tokens were not picked and `padding` tokens are
        padding; `allowed` is its mask.
        """
        words = array("I", bytes(4 * self.row_words))
        if self.counts:
            for token in set(tokens):
                words[token] = _IN_SEQUENCE
            for token in tokens[prompt:]:
                words[token] += 1
        if self.allowed_at is not None:
            mask = array("I", allowed)
            words[self.allowed_at : self.allowed_at + len(mask)] = mask
        if self.sequence:
            start = self.row_words - self.capacity
            words[start - 1] = padding
            words[start : start + len(tokens)] = array("I", tokens)
        return words.tobytes()


@dataclass(frozen=True)
class Drafting:
    """The sampler's drafting: the tokens that followed the last `ngram_size` tokens earlier, at most `most`."""

    most: int = 0
    """0 for none."""
    ngram_size: int = 0
    chained: bool = False


def sampler_program(
    stages: Sequence[Stage],
    options: Any,
    vocab: int,
    capacity: int,
    first_row: int = 0,
    drafting: Drafting | None = None,
) -> SamplerProgram:
    """The program for `options` over `vocab` logits and `capacity` positions, for rows with the random draws of row
    `first_row` and later rows. A top_k of at least `vocab` is off.
    """
    drafting = drafting or Drafting()
    active = [stage for stage in stages if stage.active(options)]
    counts = any(stage.counts for stage in active)
    bans = any(stage.ban_wgsl for stage in active)
    sequence = any(stage.sequence for stage in active) or drafting.most > 0
    allowed = any(stage.allowed for stage in active)
    ends = options.end_token_ids
    words = {"pad": options.pad_token_id, "end_count": len(ends), "first_row": first_row}
    for stage in stages:
        words |= {name: value(options) for name, value in stage.words.items()}
    if words["top_k"] >= vocab:
        words["top_k"] = 0
    table = array("I")
    for stage in stages:
        if stage.table is not None:
            words[f"table_{stage.name}"] = len(table)
            if stage in active:
                table += stage.table(options, vocab)
    bans_at = vocab * counts
    allowed_at = bans_at + vocab * bans
    own_at = allowed_at + -(-vocab // 32) * allowed
    own = {stage.name: stage.memory(options) for stage in active if stage.memory(options)}
    drafts_at = own_at + sum(own.values())
    ids_at = drafts_at + drafting.most
    row_words = ids_at + (1 + capacity) * sequence
    words |= {"rows_at": len(table), "row_words": row_words, "bans_at": bans_at}
    words |= {"allowed_at": allowed_at, "own_at": own_at, "ids_at": ids_at}
    words |= {"drafts_at": drafts_at, "draft_after": drafting.ngram_size, "chained": int(drafting.chained)}
    padding = -len(words) % _VECTOR
    room = max(LEAST_END_TOKENS, 1 << (len(ends) - 1).bit_length())
    end_words = [*ends, *[0] * (room - len(ends))]
    fields = "".join(f"  {name}: u32,\n" for name in words)
    pads = "".join(f"  unused_{index}: u32,\n" for index in range(padding))
    struct = f"struct Params {{\n{fields}{pads}  ends: array<vec4<u32>, {room // _VECTOR}>,\n}}\n"
    return SamplerProgram(
        words=array("I", [*words.values(), *[0] * padding, *end_words]).tobytes(),
        passes=("constrain",) * bool(own) + ("ban",) * bans + _passes(options, words),
        wgsl=struct + _functions(active, counts=counts, bans=bans, allowed=allowed, sequence=sequence),
        ban_wgsl=_bans(active),
        mask_wgsl="".join(stage.mask_wgsl for stage in active if stage.name in own),
        end_wgsl=_ends([stage for stage in active if stage.name in own]),
        table=table.tobytes(),
        row_words=row_words,
        counts=counts,
        allowed_at=allowed_at if allowed else None,
        own_at=own_at if own else None,
        sequence=sequence,
        drafts=drafting.most,
        vocab=vocab,
        capacity=capacity,
    )


def _passes(options: Any, words: dict[str, int]) -> tuple[str, ...]:
    if options.greedy:
        return ("max", "greedy")
    cuts = [*["count"] * (words["top_k"] != 0), *["weight"] * (words["top_p"] != 0)]
    return ("max", *cuts, "sums", "draw")


def _functions(active: Sequence[Stage], **memory: bool) -> str:
    """WGSL of the constants for the parts of the memory, of `edited` and `kept`, which call the active stages in order,
    and of the stages' functions.
    """
    edits = [stage for stage in active if stage.edit_wgsl]
    weighs = [stage for stage in active if stage.weigh_wgsl]
    edited = "".join(f"  key = edit_{stage.name}(row, token, key);\n" for stage in edits)
    kept = "".join(f"  weight = weigh_{stage.name}(weight);\n" for stage in weighs)
    tables = [stage for stage in active if stage.table is not None]
    library = dict.fromkeys(text for stage in active for text in stage.uses)
    return (
        "".join(f"const HAS_{name.upper()} = {str(there).lower()};\n" for name, there in memory.items())
        + f"fn edited(row: u32, token: u32, given: u32) -> u32 {{\n  var key = given;\n{edited}  return key;\n}}\n"
        + f"fn kept(given: u32) -> u32 {{\n  var weight = given;\n{kept}  return weight;\n}}\n"
        + "".join(
            f"fn table_{stage.name}(i: u32) -> u32 {{\n  return memory[params.table_{stage.name} + i];\n}}\n"
            for stage in tables
        )
        + "".join(
            f"fn memory_{stage.name}(row: u32) -> u32 {{\n  return row_memory(row) + params.own_at;\n}}\n"
            for stage in active
            if stage.mask_wgsl
        )
        + "".join(library)
        + "".join(stage.edit_wgsl + stage.weigh_wgsl for stage in active)
    )


def _ends(active: Sequence[Stage]) -> str:
    """WGSL of `settled` and `follow`, which call the stages that have memory."""
    settled = "".join(f"  token = settle_{stage.name}(row, token);\n" for stage in active)
    follow = "".join(f"  follow_{stage.name}(row, token);\n" for stage in active)
    return (
        f"fn settled(row: u32, given: u32) -> u32 {{\n  var token = given;\n{settled}  return token;\n}}\n"
        + f"fn follow(row: u32, token: u32) {{\n{follow}}}\n"
        + "".join(stage.end_wgsl for stage in active)
    )


def _bans(active: Sequence[Stage]) -> str:
    """WGSL of `ban_all`, which calls the stages that ban."""
    bans = [stage for stage in active if stage.ban_wgsl]
    calls = "".join(f"  ban_{stage.name}(row, part, parts);\n" for stage in bans)
    return f"fn ban_all(row: u32, part: u32, parts: u32) {{\n{calls}}}\n" + "".join(stage.ban_wgsl for stage in bans)
