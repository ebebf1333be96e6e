"""The reference sampler: it defines, token for token, the choices of the sampler on the GPU.

Everything between the logits' bits and the token is integer arithmetic, so that WGSL computes the same numbers on every
adapter (its float operations are inexact, may be fused and may flush subnormal numbers). The definition:

1. A logit is a float32 (a float16 becomes the float32 of the same value). `token_key` maps its bits to a u32 of the
   same order; NaN counts as -inf, -0 as +0. Tokens are ordered by key, largest first, equals by id, lowest first.
2. Greedy takes the first token in that order. If nothing is above -inf the result is NO_TOKEN, greedy or sampled; but
   among tokens that the host allows, the first one is taken all the same.
3. Before that, stages with an `edit` change keys, such as `min_length` and `repetition_penalty` (see capstan.stages).
4. `token_weight` is exp((logit - largest) / temperature) in units of 2**-30, from 0 to 2**30. It errs by half a unit
   and, relatively, by 2e-7 and 2**-30 of the larger magnitude of the two logits over the temperature (float32 itself
   holds a logit to 2**-25 of it). A weight below 2**-31 of the largest is 0. Tokens equal to the largest weigh 2**30,
   also where the largest is +inf (all others then weigh 0).
5. `top_k` keeps the first k tokens in the order. `top_p` keeps, of those, the shortest prefix in the order whose
   weight is at least `top_p` (rounded to 2**-32) of theirs, never less than one token. Stages with a `weigh` then
   change the weights.
6. u is word 0 of Philox4x32-10 with the seed as key and (position, row, 0, 0) as counter. The token is the first, by
   id, at which the running sum of the weights kept exceeds floor(u * total / 2**32).
"""

from __future__ import annotations

import heapq
import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from . import NEGATIVE_INFINITY_KEY, Row, temperature_scale
from .search import SearchOptions
from .weight import POSITIVE_INFINITY_KEY, token_weight

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Floats = array[float]
else:
    Floats = array

__all__ = [
    "NO_TOKEN",
    "PeakedLogits",
    "SearchOptions",
    "finite_logits",
    "float32",
    "philox4x32_10",
    "sample",
    "token_key",
    "token_keys",
    "token_weight",
]

NO_TOKEN = 0xFFFFFFFF
"""The pick of a row in which no token can be picked."""
_POSITIVE_ZERO_KEY = 0x80000000


class PeakedLogits(Floats):
    """One row of float32 logits that stay unchanged, with the largest of each PEAK of them. Without these, finding the
    largest one of a vocabulary takes Python longer than a small model's step.
    """

    PEAK = 64
    peaks: Sequence[float]
    """web/src/worker/peaks.ts makes them; a NaN among these gives NaN."""


def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32 over u32 words (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = 0xD2511F53 * c0
        product1 = 0xCD9E8D57 * c2
        c0 = (product1 >> 32) ^ c1 ^ k0
        c2 = (product0 >> 32) ^ c3 ^ k1
        c1 = product1 & 0xFFFFFFFF
        c3 = product0 & 0xFFFFFFFF
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def token_key(bits: int) -> int:
    """The rank of a float32, given by its bits, in the order of floats; NaN counts as -inf and -0 as +0."""
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return NEGATIVE_INFINITY_KEY
    if magnitude == 0:
        return _POSITIVE_ZERO_KEY
    return bits ^ 0xFFFFFFFF if bits >> 31 else bits | 0x80000000


def token_keys(logits: Buffer | Sequence[float], *, float16_bits: bool = False) -> list[int]:
    """The keys of one row of logits.

    `logits` is a C-contiguous buffer of float32 (`f`), float64 (`d`, rounded to float32) or float16 (`e`), or of raw
    float16 bits (`H`) with `float16_bits`, or a sequence of floats (rounded to float32; beyond its range: infinite).
    """
    return _keys(_float32_bytes(logits, float16_bits))


def _keys(row: bytes | memoryview) -> list[int]:
    words = memoryview(row).cast("I")
    keys = [word | 0x80000000 if word < 0x80000000 else word ^ 0xFFFFFFFF for word in words]
    # This comprehension is wrong for three rare kinds of value, which are cheap to find.
    if keys and (max(keys) > POSITIVE_INFINITY_KEY or min(keys) < NEGATIVE_INFINITY_KEY or 0x7FFFFFFF in keys):
        return [token_key(word) for word in words]
    return keys


def _float32_bytes(logits: Any, float16_bits: bool) -> bytes | memoryview:
    try:
        view = memoryview(logits)
    except TypeError:
        return array("f", [float32(value) for value in logits]).tobytes()
    kind = view.format.lstrip("<@=")
    if kind == "f":
        return view.cast("B")
    if kind == "e" or (kind == "H" and float16_bits):
        count = view.nbytes // 2
        return array("f", struct.unpack(f"{count}e", view.cast("B"))).tobytes()
    if kind == "d":
        return array("f", [float32(value) for value in view.cast("B").cast("d")]).tobytes()
    raise OptionError(
        f"logits have the buffer format {view.format!r}; use float32 ('f'), float16 ('e') or float64 ('d'), "
        "or 'H' with float16_bits=True"
    )


def float32(value: float) -> float:
    """The nearest float32; infinite beyond its range."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def sample(
    logits: Buffer | Sequence[float],
    options: SearchOptions,
    position: int,
    row: int = 0,
    *,
    tokens: Sequence[int] = (),
    prompt: int = 0,
    allowed: bytes = b"",
    float16_bits: bool = False,
) -> int:
    """The next token of one row; see the module's definition.

    `logits` is the argument of `token_keys`, [vocabulary]. `position` is the length of the sequence before this token,
    and so the token's index; `tokens` is that sequence, for penalties and bans, and the first `prompt` of them were not
    picked. NO_TOKEN if all logits are NaN or -inf. Raises OptionError without logits.
    """
    values = _float32_bytes(logits, float16_bits)
    if not values:
        raise OptionError("logits are empty; there must be at least one token")
    stages = options.stages()
    known = Row(position, tokens, prompt, allowed)
    due = [(stage.edit, stage.allowed) for stage in stages if stage.edit is not None and stage.due(options, known)]
    masked = any(masks for _, masks in due)
    # Keys of all tokens with a possible weight; the others come later in the order and add nothing.
    by_peaks = options.greedy and isinstance(logits, PeakedLogits)
    row_of = _finite_row(logits, values) if by_peaks or not masked else None
    best = None
    if row_of is not None:
        for edit, masks in due:
            if not masks:
                edit(row_of, options, known)
        best = row_of.best(allowed if masked else None)
        if best is None and not masked:
            return NO_TOKEN
    if row_of is not None and best is not None:
        largest, first = best
        if options.greedy:
            return first
        keys: Mapping[int, int] = row_of.near(_least_with_weight(largest, options.temperature))
    else:
        every = KeyList(_keys(values))
        for edit, _ in due:
            edit(every, options, known)
        top = max(every)
        if top <= NEGATIVE_INFINITY_KEY and not any(stage.allowed for stage in stages):
            return NO_TOKEN
        if options.greedy or top == NEGATIVE_INFINITY_KEY:
            return every.index(top)
        floor = _weightless_below(top, options.temperature)
        keys = {token: key for token, key in enumerate(every) if key >= floor}
    top, kept = max(keys.values()), list(keys)
    if 0 < options.top_k < len(kept):
        kept = _first_in_order(kept, keys, options.top_k)
    scale = temperature_scale(options.temperature)
    cache = {key: token_weight(key, top, scale) for key in {keys[token] for token in kept}}
    weights = [cache[keys[token]] for token in kept]
    total = sum(weights)

    if options.top_p_bits:
        target = -(-options.top_p_bits * total >> 32)
        order = sorted(range(len(kept)), key=[keys[token] for token in kept].__getitem__, reverse=True)
        mass = count = 0
        while mass < target:
            mass += weights[order[count]]
            count += 1
        chosen = sorted(order[:count])
        kept = [kept[index] for index in chosen]
        weights = [weights[index] for index in chosen]
        total = mass

    for stage in stages:
        if stage.weigh is not None:
            weights = stage.weigh(weights, options)
            total = sum(weights)

    seed = (options.seed & 0xFFFFFFFF, options.seed >> 32)
    draw = philox4x32_10((position, row, 0, 0), seed)[0] * total >> 32
    for token, weight in zip(kept, weights, strict=True):
        draw -= weight
        if draw < 0:
            return token
    raise AssertionError("the draw lies below the total weight")  # pragma: no cover


def finite_logits(
    logits: Buffer, options: SearchOptions | None = None, tokens: Sequence[int] = (), prompt: int = 0
) -> Sequence[float]:
    """One row of logits, float32 [vocabulary], in the order of `sample`: NaN and -inf become float32's smallest number,
    +inf its largest. With options, the stages first edit the row, which belongs to a sequence `tokens`, of which the
    first `prompt` were not picked.
    """
    known = Row(len(tokens), tokens, prompt)
    stages = () if options is None else options.stages()
    edits = [stage.edit for stage in stages if stage.edit is not None and stage.due(options, known)]
    row = array("f")
    row.frombytes(memoryview(logits).cast("B"))
    if not edits and math.isfinite(sum(row)):
        return row
    keys = KeyList(_keys(memoryview(row).cast("B")))
    for edit in edits:
        edit(keys, options, known)
    finite = [min(max(key, NEGATIVE_INFINITY_KEY + 1), POSITIVE_INFINITY_KEY - 1) for key in keys]
    words = array("I", [key & 0x7FFFFFFF if key >> 31 else key ^ 0xFFFFFFFF for key in finite])
    return memoryview(words).cast("B").cast("f")


class KeyList(list[int]):
    """The keys of a row."""

    def largest(self, start: int, stop: int) -> int:
        return max(self[start:stop], default=NEGATIVE_INFINITY_KEY)

    def exclude(self, start: int, stop: int) -> None:
        self[start:stop] = [NEGATIVE_INFINITY_KEY] * len(range(start, stop))


class RowKeys:
    """The keys of a row of logits without NaN. A changed key changes the logit. Keys are computed on demand: few are
    requested, and those of a whole vocabulary take Python longer than a step of a small model.
    """

    def __init__(self, row: array[float], peaks: Sequence[float] | None = None) -> None:
        """`peaks` as in PeakedLogits, of an unchanged row."""
        self._row, self._words = row, memoryview(row).cast("B").cast("I")
        self._size = len(row) if peaks is None else PeakedLogits.PEAK
        self._peaks = [0.0] if peaks is None else list(peaks)
        self._stale = {0} if peaks is None else set[int]()
        """The numbers of peaks that are no longer right."""

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, token: int, /) -> int:
        return token_key(self._words[token])

    def __setitem__(self, token: int, key: int, /) -> None:
        self._words[token] = key & 0x7FFFFFFF if key >> 31 else key ^ 0xFFFFFFFF
        self._stale.add(token // self._size)

    def largest(self, start: int, stop: int) -> int:
        logits = self._row[start:stop]
        return self[start + logits.index(max(logits))] if logits else NEGATIVE_INFINITY_KEY

    def exclude(self, start: int, stop: int) -> None:
        self._words[start:stop] = array("I", [NEGATIVE_INFINITY_KEY ^ 0xFFFFFFFF]) * len(range(start, stop))
        self._stale.update(range(start // self._size, -(-min(stop, len(self)) // self._size)))

    def best(self, allowed: bytes | None = None) -> tuple[float, int] | None:
        """The largest logit, of the tokens in the mask `allowed` if there is one, and the first token with it; None if
        it is -inf.
        """
        for number in self._stale:
            self._peaks[number] = max(self._part(number))
        self._stale.clear()
        if allowed is None:
            largest = max(self._peaks)
            number = self._peaks.index(largest)
            first = number * self._size + self._part(number).index(largest)
        else:
            largest, first = -math.inf, 0
            for number in sorted(range(len(self._peaks)), key=self._peaks.__getitem__, reverse=True):
                if self._peaks[number] < largest:
                    break
                for token, logit in enumerate(self._part(number), number * self._size):
                    if (logit > largest or (logit == largest and token < first)) and _is_in(allowed, token):
                        largest, first = logit, token
        return None if largest == -math.inf else (largest, first)

    def near(self, least: float) -> dict[int, int]:
        """The keys by id of all tokens whose logits are at least `least`. Call `best` first."""
        found = {}
        for number, peak in enumerate(self._peaks):
            if peak >= least:
                logits = enumerate(self._part(number), number * self._size)
                found.update({token: self[token] for token, logit in logits if logit >= least})
        return found

    def _part(self, number: int) -> array[float]:
        return self._row[number * self._size : (number + 1) * self._size]


def _is_in(mask: bytes, token: int) -> bool:
    """Whether the bit of a token is set in a mask of little-endian u32 words."""
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _finite_row(logits: object, values: bytes | memoryview) -> RowKeys | None:
    """A copy of the logits as floats; None if one is not finite, since NaN is not ordered like its key."""
    row = array("f")
    row.frombytes(values)
    peaks = logits.peaks if isinstance(logits, PeakedLogits) else None
    return RowKeys(row, peaks) if math.isfinite(sum(row if peaks is None else peaks)) else None


def _first_in_order(tokens: list[int], keys: Mapping[int, int], count: int) -> list[int]:
    """The first `count` of `tokens` (which ascend) by key, largest first, equals by id; returned by id."""
    cut = heapq.nlargest(count, [keys[token] for token in tokens])[-1]
    above = sum(keys[token] > cut for token in tokens)
    equals = [token for token in tokens if keys[token] == cut][: count - above]
    last_equal = equals[-1]
    return [token for token in tokens if keys[token] > cut or (keys[token] == cut and token <= last_equal)]


def _weightless_below(top: int, temperature: float) -> int:
    """A key below which every token weighs 0."""
    if top == POSITIVE_INFINITY_KEY:
        return top
    bits = top & 0x7FFFFFFF if top >> 31 else top ^ 0xFFFFFFFF
    largest = float(struct.unpack("f", struct.pack("I", bits))[0])
    return token_key(struct.unpack("I", struct.pack("f", _least_with_weight(largest, temperature)))[0])


def _least_with_weight(largest: float, temperature: float) -> float:
    """A logit below which every token weighs 0. Weights end 21.5 temperatures below the largest one; 23 are kept."""
    return float32(largest - 23 * temperature)
