"""Whisper's timestamps: in pairs, in order, and required if all of them together are likelier than any text token.

The definition is openai's `ApplyTimestampRules`, and transformers' `WhisperTimeStampLogitsProcessor`. Timestamps are
the last ids of the vocabulary. Their probabilities are added as integers (see capstan.stages.weight). This stage edits
first, so that it reads the model's own logits.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .stage import NEGATIVE_INFINITY_KEY, Keys, Row, Stage, StageOptions
from .weight import ONE, temperature_scale, token_weight

__all__ = ["TimestampTokens", "Timestamps"]

UNIT = temperature_scale(1.0)


@dataclass(frozen=True)
class TimestampTokens:
    """The ids of the rules, and the position at which the rules begin."""

    prompt: int
    """The number of tokens before a window's first one."""
    begin: int
    """The timestamp 0.00."""
    end: int
    """The end of a text; ids from here to `begin` are special tokens."""
    never: tuple[int, ...]
    """Never picked."""
    never_first: tuple[int, ...]
    """Never picked as a window's first token."""
    initial: int
    """The largest index of a window's first timestamp."""


def _bounds(known: TimestampTokens, picked: Sequence[int], vocab: int) -> tuple[int, int, int]:
    """Three ids: the first is the smallest allowed id of other tokens; timestamps are allowed from the second to before
    the third.
    """
    begin = known.begin
    if not picked:
        return begin, begin, min(begin + known.initial + 1, vocab)
    last = next((each for each in reversed(picked) if each >= begin), begin - 1)
    if picked[-1] < begin:
        return 0, last + 1, vocab
    if len(picked) > 1 and picked[-2] < begin:
        # The same timestamp again begins the next segment.
        return known.end, last, vocab
    return 0, begin, begin


def _edit(keys: Keys, options: Any, row: Row) -> None:
    known: TimestampTokens = options.timestamps
    vocab, picked = len(keys), row.tokens[known.prompt :]
    text, first, last = _bounds(known, picked, vocab)
    for start, stop in (0, text), (known.begin, first), (last, vocab):
        keys.exclude(start, stop)
    for token in _never(known, not picked, vocab):
        keys.exclude(token, token + 1)
    if _likelier(keys, known.begin, first, last):
        keys.exclude(0, known.begin)


def _never(known: TimestampTokens, first: bool, vocab: int) -> list[int]:
    return [token for token in (*known.never, *(known.never_first if first else ())) if token < vocab]


def _likelier(keys: Keys, begin: int, first: int, last: int) -> bool:
    """Whether the probabilities of all timestamps add up to more than that of any other token."""
    text, time = keys.largest(0, begin), keys.largest(first, last)
    if time > text:
        return True
    if (last - first) * token_weight(time, text, UNIT) < ONE // 2:
        # Most picks are plain text: even all timestamps at the largest one's weight are too few.
        return False
    found = (keys[token] for token in range(first, last))
    return sum(token_weight(key, text, UNIT) for key in found if key > NEGATIVE_INFINITY_KEY) > ONE


def _table(options: Any, vocab: int) -> array[int]:
    """A bit for each token that is never picked, then a bit for each token that is never the first pick."""
    words = -(-vocab // 32)
    found = array("I", bytes(8 * words))
    for first in (False, True):
        for token in _never(options.timestamps, first, vocab):
            found[words * first + (token >> 5)] |= 1 << (token & 31)
    return found


def _word(name: str) -> Any:
    return lambda options: getattr(options.timestamps, name) if options.timestamps else 0


@dataclass(frozen=True)
class Timestamps(StageOptions):
    """Limits the timestamps of a window. A transcriber sets them; they are not an option of a search."""

    timestamps: TimestampTokens | None = field(default=None, repr=False)

    stage: ClassVar[Stage | None] = Stage(
        "timestamps",
        active=lambda options: options.timestamps is not None,
        words={f"timestamps_{name}": _word(name) for name in ("prompt", "begin", "end", "initial")},
        table=_table,
        edit=_edit,
        sequence=True,
        ban_wgsl=f"""
const ONE = {ONE}u;
const MANY = 0x7fffffffu;

var<workgroup> best_text: atomic<u32>;
var<workgroup> time_weights: array<u32, 256>;

fn never_picked(token: u32, first: bool) -> bool {{
  let word = (token >> 5u) + select(0u, (VOCAB + 31u) / 32u, first);
  return ((table_timestamps(word) >> (token & 31u)) & 1u) != 0u;
}}

// Other tokens may come from x on, timestamps from y to before z.
fn timestamp_bounds(row: u32) -> vec3<u32> {{
  let begin = params.timestamps_begin;
  let length = sequence_length(row);
  if (length <= params.timestamps_prompt) {{
    return vec3<u32>(begin, begin, min(begin + params.timestamps_initial + 1u, VOCAB));
  }}
  var last = begin - 1u;
  for (var at = length; at > params.timestamps_prompt && last < begin; at--) {{
    let token = sequence_token(row, at - 1u);
    last = select(last, token, token >= begin);
  }}
  if (sequence_token(row, length - 1u) < begin) {{
    return vec3<u32>(0u, last + 1u, VOCAB);
  }}
  if (length > params.timestamps_prompt + 1u && sequence_token(row, length - 2u) < begin) {{
    return vec3<u32>(params.timestamps_end, last, VOCAB);
  }}
  return vec3<u32>(0u, begin, begin);
}}

// Every workgroup finds for itself whether timestamps are likelier.
fn ban_timestamps(row: u32, part: u32, parts: u32) {{
  let thread = part % WG;
  let begin = params.timestamps_begin;
  let bounds = timestamp_bounds(row);
  let first = sequence_length(row) <= params.timestamps_prompt;
  var best = NEGATIVE_INFINITY_KEY;
  for (var token = bounds.x + thread; token < begin; token += WG) {{
    if (!never_picked(token, first)) {{
      best = max(best, logit_key(row, token));
    }}
  }}
  atomicMax(&best_text, best);
  workgroupBarrier();
  let top = atomicLoad(&best_text);
  var weight = 0u;
  for (var token = bounds.y + thread; token < bounds.z; token += WG) {{
    let key = logit_key(row, token);
    if (key > NEGATIVE_INFINITY_KEY && !never_picked(token, first)) {{
      let more = select(weight_beside(key, top, {UNIT[0]}u, {UNIT[1]}), MANY, key > top);
      weight = min(weight + more, MANY);
    }}
  }}
  time_weights[thread] = weight;
  workgroupBarrier();
  if (thread < 16u) {{
    for (var i = thread + 16u; i < WG; i += 16u) {{
      weight = min(weight + time_weights[i], MANY);
    }}
    time_weights[thread] = weight;
  }}
  workgroupBarrier();
  weight = 0u;
  for (var i = 0u; i < 16u; i++) {{
    weight = min(weight + time_weights[i], MANY);
  }}
  for (var token = part; token < VOCAB; token += parts) {{
    let text = token < begin && (token < bounds.x || weight > ONE);
    let time = token >= begin && (token < bounds.y || token >= bounds.z);
    if (text || time || never_picked(token, first)) {{
      ban(row, token);
    }}
  }}
}}
""",
    )
