"""guided: only tokens that a grammar allows can be picked.

A bit mask has the allowed tokens. The host writes it before each pick (capstan.guidance), or the GPU computes it: with
a `GrammarTable` it follows each row's picks through an automaton over bytes, and walks all tokens through the automaton
before the next pick. A token that is not allowed gets a key below every other, so that it loses even if all allowed
tokens count as -inf. This stage edits last, so that no other stage can allow a token again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .option import switch
from .stage import Keys, Row, Stage, StageOptions

__all__ = ["FORBIDDEN_KEY", "STACK", "GrammarTable", "Guided", "position_words"]

FORBIDDEN_KEY = 0
_ALL = 0xFFFFFFFF

STACK = 254
"""The most states of a row's stack on the GPU."""

_PUSHED = 32
"""The most states that one token may push."""


@dataclass(frozen=True, eq=False)
class GrammarTable:
    """An automaton over bytes and the tokens' bytes, in the GPU's form; capstan.guidance makes it.

    The u32 words begin with the class of each byte, 4 classes a word. From word 64 each state has `width` words. The
    first ones are for the classes: the next state plus 1, with the place of a list of pushed states in the upper half,
    or 0 if the byte does not fit; the last one is 1 if the state's rule may end there. From `pushes` there are the
    lists of pushed states, each after its length. From `tokens` there are the start of each token's bytes and the end
    of the last token's bytes; the highest bit is set for a token that ends outputs. From `bytes` there are the tokens'
    bytes.
    """

    words: array[int]
    width: int
    pushes: int
    tokens: int
    bytes: int


def _edit(keys: Keys, _options: Any, row: Row) -> None:
    for index, word in enumerate(array("I", row.allowed)):
        if word == _ALL:
            continue
        for token in range(32 * index, min(32 * index + 32, len(keys))):
            if not word >> (token & 31) & 1:
                keys[token] = FORBIDDEN_KEY


def position_words(stack: Sequence[int]) -> bytes:
    """A row's memory for its position in the automaton: the number of states (0 if the host writes the masks), whether
    the next mask is still to be computed, and the states.
    """
    return array("I", [len(stack), 0, *stack]).tobytes()


def _word(name: str) -> Any:
    return lambda options: getattr(options.grammar, name) if options.grammar else 0


_WALK = f"""
const GRAMMAR_STACK = {STACK}u;
const GRAMMAR_PUSHED = {_PUSHED}u;
const STEPS = 64u; // where the steps of the states begin

var<private> walk_fits: bool;
var<private> walk_unknown: bool; // it pushed more than there is room for
var<private> walk_floor: u32;    // states of the row's stack that are still there
var<private> walk_count: u32;    // states pushed above them
var<private> walk_top: u32;
var<private> walk_pushed: array<u32, GRAMMAR_PUSHED>;

// Take the state below the top in its place; whether there was one.
fn walk_back(row: u32) -> bool {{
  if (walk_count > 0u) {{
    walk_count -= 1u;
    walk_top = walk_pushed[walk_count];
    return true;
  }}
  if (walk_floor > 0u) {{
    walk_floor -= 1u;
    walk_top = memory[memory_guided(row) + 2u + walk_floor];
    return true;
  }}
  return false;
}}

fn state_may_end(state: u32) -> bool {{
  return table_guided(STEPS + (state + 1u) * params.grammar_width - 1u) != 0u;
}}

// Take a token's bytes from where the row is.
fn walk(row: u32, token: u32) {{
  walk_fits = false;
  walk_unknown = false;
  walk_count = 0u;
  walk_floor = memory[memory_guided(row)] - 1u;
  walk_top = memory[memory_guided(row) + 2u + walk_floor];
  let end = table_guided(params.grammar_tokens + token + 1u) & 0x7fffffffu;
  for (var at = table_guided(params.grammar_tokens + token) & 0x7fffffffu; at < end; at++) {{
    let byte = (table_guided(params.grammar_bytes + (at >> 2u)) >> (8u * (at & 3u))) & 255u;
    let symbol = (table_guided(byte >> 2u) >> (8u * (byte & 3u))) & 255u;
    var next = table_guided(STEPS + walk_top * params.grammar_width + symbol);
    while (next == 0u) {{
      if (!state_may_end(walk_top) || !walk_back(row)) {{
        return;
      }}
      next = table_guided(STEPS + walk_top * params.grammar_width + symbol);
    }}
    let pushes = params.grammar_pushes + (next >> 16u);
    for (var i = 1u; i <= table_guided(pushes); i++) {{
      if (walk_count == GRAMMAR_PUSHED) {{
        walk_unknown = true;
        return;
      }}
      walk_pushed[walk_count] = table_guided(pushes + i);
      walk_count += 1u;
    }}
    walk_top = (next & 0xffffu) - 1u;
  }}
  walk_fits = true;
}}

// Whether the output may end where the row is.
fn output_may_end(row: u32) -> bool {{
  for (var i = 0u; i < memory[memory_guided(row)]; i++) {{
    if (!state_may_end(memory[memory_guided(row) + 2u + i])) {{
      return false;
    }}
  }}
  return true;
}}

"""

_MASK = """
fn makes_mask(row: u32) -> bool {
  return memory[memory_guided(row)] != 0u;
}

fn fits(row: u32, token: u32) -> bool {
  let begin = table_guided(params.grammar_tokens + token);
  if ((begin >> 31u) != 0u) {
    return output_may_end(row);
  }
  walk(row, token);
  if (walk_unknown) {
    memory[memory_guided(row) + 1u] = 1u;
  }
  return walk_fits && begin != (table_guided(params.grammar_tokens + token + 1u) & 0x7fffffffu);
}
"""

_FOLLOW = """
// Nothing is picked where the mask is not known.
fn settle_guided(row: u32, token: u32) -> u32 {
  return select(token, NO_TOKEN, memory[memory_guided(row) + 1u] != 0u);
}

fn follow_guided(row: u32, token: u32) {
  let at = memory_guided(row);
  if (memory[at] == 0u) {
    return;
  }
  walk(row, token);
  if (walk_unknown || walk_floor + walk_count >= GRAMMAR_STACK) {
    memory[at + 1u] = 1u;
    return;
  }
  for (var i = 0u; i < walk_count; i++) {
    memory[at + 2u + walk_floor + i] = walk_pushed[i];
  }
  memory[at + 2u + walk_floor + walk_count] = walk_top;
  memory[at] = walk_floor + walk_count + 1u;
}
"""


@dataclass(frozen=True)
class Guided(StageOptions):
    """`guided` and `grammar` are not options of a search: guidance sets them."""

    guided: bool = False
    grammar: GrammarTable | None = field(default=None, repr=False)

    stage: ClassVar[Stage | None] = Stage(
        "guided",
        active=lambda options: bool(options.guided),
        words={f"grammar_{name}": _word(name) for name in ("width", "pushes", "tokens", "bytes")},
        table=lambda options, _vocab: options.grammar.words if options.grammar else array("I"),
        edit=_edit,
        allowed=True,
        edit_wgsl="""
fn edit_guided(row: u32, token: u32, key: u32) -> u32 {
  return select(0u, key, is_allowed(row, token));
}
""",
        memory=lambda options: 2 + STACK if options.grammar else 0,
        mask_wgsl=_WALK + _MASK,
        end_wgsl=_WALK + _FOLLOW,
    )

    def check(self) -> None:
        switch("guided", self.guided)
