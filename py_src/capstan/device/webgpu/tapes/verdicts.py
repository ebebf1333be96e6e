"""Judges the operations of a recorded step, and keeps the verdict for later loads.

`judge` finds the wrong operations of a step by the distance of their results from the truth (tape/witness.py). A
Verdict gives the form in which a recorded step can be replayed; Verdicts keeps it in the browser's storage, under a key
of everything that can change it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ....host.notes import Notes
from ....tape import UNIT, Clear, Copy, Dispatch, DispatchIndirect, Found, Node, Op, Recorded, Recording, Write

__all__ = ["OURS", "RECORDED", "Bound", "Verdict", "Verdicts", "judge", "recording_digest"]


@dataclass(frozen=True)
class Bound:
    """The allowed distance of results from the truth, in units of rounding (see docs/design_checking.md)."""

    largest: float
    """The bound for any element."""
    mean: float
    """The bound for the root of the mean square over all elements."""
    by_depth: bool
    """Whether both bounds for float16 values grow with the square root of the number of terms, as errors of float16
    sums grow. Bounds for float32 values always grow so.
    """

    def of(self, node: Node, element: str) -> Bound:
        """The bound for one operation over values of this type."""
        what = node.what
        if isinstance(what, Recorded) or not (self.by_depth or element == "f32"):
            return self
        depth = math.sqrt(what.terms)
        return Bound(self.largest * depth, self.mean * depth, False)


OURS = Bound(largest=12.0, mean=2.0, by_depth=False)
"""The bounds for our kernels, which add at most 16 products in the type of the values and everything else in float32.
"""
RECORDED = Bound(largest=12.0, mean=2.0, by_depth=True)
"""The bounds for kernels of onnxruntime-web, which adds in the type of the values. They show whether a recorded
operation was recognised correctly.
"""
IN_INT8 = Bound(largest=4.0, mean=1 / 16, by_depth=False)
"""The bound, in parts of the spread, for onnxruntime-web's kernels that round x to int8, with one scale for 128
elements. Each element differs by max|x| / (254 sqrt 3) in the mean, and max|x| is at most sqrt 128 times the root of
the mean square of the 128: 0.026 of the spread. Single elements of y are not judged, because their weights may be small
where x is large. Measured on an H200 over SmolLM2 in float32: 0.011 in the mean, 0.077 at most.
"""


def judge(
    nodes: Sequence[Node], found: Sequence[Found], bound: Bound, what: str, in_int8: Collection[int] = ()
) -> dict[int, str]:
    """The reasons why operations are wrong, by the index of their node; `what` names the judged kernels, and the inputs
    of the nodes `in_int8` were rounded to int8.
    """
    faults: dict[int, str] = {}
    for each in found:
        node = nodes[each.node]
        limit = rounded_to_int8(each.element_type) if each.node in in_int8 else bound.of(node, each.element_type)
        got, wanted = f"element {each.element} is {each.got:.6g}", f"the truth {each.wanted:.6g}"
        if each.unlike:
            reason = f"{each.unlike} elements are finite in only one of result and truth; {got}, {wanted}"
        elif each.largest > limit.largest:
            far = f"{each.largest:.3g} units of rounding apart; at most {limit.largest:.3g} are explained"
            reason = f"{got}, {wanted}: {far}"
        elif each.mean > limit.mean:
            reason = f"{each.mean:.3g} units of rounding off in the mean; at most {limit.mean:.3g} are explained"
        else:
            continue
        faults.setdefault(each.node, f"{each.part} of {described(node)} by {what}: {reason}")
    return faults


def rounded_to_int8(element: str) -> Bound:
    """The bound IN_INT8 in units of the element type's rounding."""
    return Bound(IN_INT8.largest / UNIT[element], IN_INT8.mean / UNIT[element], by_depth=False)


def described(node: Node) -> str:
    """An operation, for messages."""
    title = "a recorded operation" if isinstance(node.what, Recorded) else node.what.title
    return f"{title} at {node.position}"


@dataclass(frozen=True)
class Verdict:
    """The best form in which a recorded step can be replayed, and the reason why a better one failed."""

    form: str
    """'fused'; 'lean', recorded kernels without clears; or 'plain', recorded kernels with them."""
    left: Mapping[int, str] = field(default_factory=dict)
    """Recorded operations that stay as recorded because our kernel was wrong, with the reason."""
    passes: Mapping[str, str] = field(default_factory=dict)
    """The effect of each pass, for reports."""
    direct: bool = False
    """Whether the indirect dispatches of a lean step were made direct."""
    lasting: bool = True
    """Whether it is valid for later loads: not if memory was short, since a later load may have more."""


class Verdicts:
    """Verdicts of one model, by recording; kept in the browser's storage if there are `notes`.

    `facts` is everything that the verdicts depend on besides the recording: the model, the adapter, the browser, the
    versions.
    """

    def __init__(self, notes: Notes | None, model: str, facts: str) -> None:
        self._notes, self._model, self._facts = notes, model, facts
        self._found: dict[str, Verdict] = {}
        """The verdicts of this page, by recording."""

    async def read(self, capacity: int, digest: str) -> Verdict | None:
        """The verdict on this recording; None if there is none or its note is damaged."""
        if digest in self._found or self._notes is None:
            return self._found.get(digest)
        text = await self._notes.read(self._name(capacity), self._key(digest))
        if text is None:
            return None
        try:
            found = json.loads(text)
            left = {int(index): str(reason) for index, reason in found.pop("left").items()}
            verdict = Verdict(left=left, **found)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return verdict if verdict.form in ("fused", "lean", "plain") else None

    async def write(self, capacity: int, digest: str, verdict: Verdict) -> None:
        """Keep a verdict for later loads, if it is valid for them."""
        if not verdict.lasting:
            return
        self._found[digest] = verdict
        if self._notes is not None:
            await self._notes.write(self._name(capacity), self._key(digest), json.dumps(asdict(verdict)))

    async def read_run(self, most: int, bound: float) -> int | None:
        """The settled size of prefill runs of at most `most` tokens and `bound` milliseconds; None if unknown."""
        text = await self._notes.read(self._run_name, self._run_key(most, bound)) if self._notes is not None else None
        return int(text) if text is not None and text.isdecimal() and 0 < int(text) <= most else None

    async def write_run(self, most: int, bound: float, tokens: int) -> None:
        """Keep the size for later loads."""
        if self._notes is not None:
            await self._notes.write(self._run_name, self._run_key(most, bound), str(tokens))

    @property
    def _run_name(self) -> str:
        return f"prefill runs of {self._model}"

    def _run_key(self, most: int, bound: float) -> str:
        return json.dumps([self._facts, most, bound])

    def _name(self, capacity: int) -> str:
        return f"decode step of {self._model} for {capacity} positions"

    def _key(self, digest: str) -> str:
        return json.dumps([self._facts, digest])


def recording_digest(recording: Recording, ops: Sequence[Op], passes: Sequence[str]) -> str:
    """The digest of a recorded step and the passes: its operations (`ops` are the recorded ones after a first
    rewrite), WGSL, bindings, sizes and uploads.

    Ids of buffers and pipelines are numbered by first use, since they differ from load to load.
    """
    numbers: dict[tuple[str, int], int] = {}

    def number(kind: str, id_: int) -> int:
        return numbers.setdefault((kind, id_), len(numbers))

    digest = hashlib.sha256(repr(tuple(passes)).encode())

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode())

    def dispatched(pipeline: int, groups: Sequence[int]) -> None:
        fresh = ("pipeline", pipeline) not in numbers
        add(number("pipeline", pipeline))
        if fresh:
            add(recording.pipelines[pipeline].code, sorted(recording.pipelines[pipeline].access.items()))
        for group in groups:
            for binding, buffer, offset, size in recording.groups[group].entries:
                add(binding, number("buffer", buffer), offset, size, recording.sizes[buffer])

    for op in (*recording.ops, *ops):
        add(type(op).__name__)
        match op:
            case Dispatch():
                dispatched(op.pipeline, op.groups)
                add(op.x, op.y, op.z)
            case DispatchIndirect():
                dispatched(op.pipeline, op.groups)
                add(number("buffer", op.buffer), op.offset)
            case Copy():
                source, target = number("buffer", op.source), number("buffer", op.target)
                add(source, op.source_offset, target, op.target_offset, op.size)
            case Clear():
                add(number("buffer", op.buffer), op.offset, op.size)
            case Write():
                add(number("buffer", op.buffer), op.offset, op.data)
    return digest.hexdigest()
