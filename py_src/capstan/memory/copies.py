"""Which bytes have to move so that a session can run, through what, and in what order: pure planning.

`plan_copies` plans the transfers around one run, with sources on one side of the session and destinations on the other;
`plan_tensor_copies` plans copies on a device. Neither takes more copies than one for each transfer, two where it goes
through a buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import BindingError, BufferMismatchError
from .compatibility import devices_are_memory_compatible
from .info import Capabilities, MemoryInfo
from .places import Kind, Place, Temporaries, Temporary
from .pools import round_up
from .routes import detour, not_in_words, one_step, route
from .steps import Bounce, ByteCopy, Copy, HostCopy, Readback, Step, Upload

__all__ = ["CopyPlan", "Group", "Transfer", "plan_copies", "plan_tensor_copies"]

STAGING_SLOT = 8
"""Bytes that the offset of a mapped range is a multiple of."""

GroupKind = Literal["host", "device", "mapped"]
KINDS: tuple[GroupKind, ...] = ("host", "device", "mapped")
Move = tuple[Place, Place]


@dataclass(frozen=True)
class Transfer:
    """A tensor of a run. A feed's `source` is the caller's place and `destination` the session's own; a fetch's are the
    other way round."""

    name: str
    source: Place
    destination: Place
    rebind: bool = True
    """The session may be bound to the caller's place instead; a captured session may not."""


@dataclass(frozen=True)
class Group:
    """Steps that are carried out together. Groups follow each other: a device group is submitted before the next one's
    uploads are called, and a mapped group waits for what was submitted."""

    kind: GroupKind
    """'host': Upload and HostCopy, at once. 'device': one submit. 'mapped': Readback and mapped HostCopy, after one
    submit of the copies to staging memory and a wait."""
    steps: tuple[Step, ...]
    staging_bytes: int = 0
    """Of the one staging buffer that all readbacks of the group share."""


@dataclass(frozen=True)
class CopyPlan:
    """What to do before and after a run, and what to bind for it."""

    before: tuple[Group, ...]
    after: tuple[Group, ...]
    bindings: dict[str, Place]
    """Where the session finds each feed and puts each fetch: its own place, the caller's, or a temporary."""
    aliases: tuple[str, ...]
    """Tensors that are bound where the caller has them: no byte of theirs moves."""
    staged: tuple[str, ...]
    """Boundary tensors that are placed in staging memory: bound there where a device computes in it, else fetched by
    way of it."""
    temporaries: tuple[Temporary, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for group in (*self.before, *self.after) for step in group.steps)

    @property
    def copies(self) -> int:
        """How often bytes are copied; a bounce copies twice."""
        return sum(2 if isinstance(step, Bounce) else 1 for step in self.steps)


def plan_copies(
    feeds: Sequence[Transfer],
    fetches: Sequence[Transfer],
    *,
    capabilities: Capabilities | None,
    staging: MemoryInfo | None = None,
    bound_offsets: int | None = None,
    in_place: Mapping[str, str] | None = None,
) -> CopyPlan:
    """Plan the copies around one run of a session.

    All feeds are taken as they are before the plan, also where one's destination is another's source; likewise the
    fetches. `capabilities` are what the session's device was seen to do; None: nothing that would have to be probed is
    relied on. `staging` is the device's HOST_ACCESSIBLE memory, if boundary tensors may be placed there. A bound place
    starts at a multiple of `bound_offsets`; None: at 0 only, as onnxruntime-web binds whole buffers. `in_place` names,
    for a fetch, the feed whose bytes the run may overwrite (present over past).

    Raises BindingError for two tensors of one name, a length that differs, or two destinations that overlap;
    BufferMismatchError for staging memory that is not addressed in words.
    """
    for transfers in (feeds, fetches):
        check_transfers(transfers)
    one_tensor = dict(in_place or {}) if capabilities and capabilities.in_place_cache else {}
    planner = Planner(capabilities, staging, bound_offsets, Temporaries())
    bindings: dict[str, Place] = {}
    moves: list[Move] = []
    for feed in feeds:
        updated = {name for name, fed in one_tensor.items() if fed == feed.name}
        written = [
            fetch.source
            for fetch in fetches
            if fetch.name not in updated
            or not fetch.source.same(feed.source)
            or not fetch.source.same(fetch.destination)
        ]
        written += [other.destination for other in feeds if other is not feed]
        bindings[feed.name] = place = planner.bind(feed, feed.source, feed.destination, written)
        moves.append((feed.source, place))
    before = in_groups(moves, planner.temporaries)
    read = dict(bindings)
    moves = []
    for fetch in fetches:
        own = one_tensor.get(fetch.name)
        taken = [place for name, place in read.items() if name != own or not place.same(fetch.destination)]
        taken += [other.source for other in fetches if other is not fetch]
        bindings[fetch.name] = place = planner.bind(fetch, fetch.destination, fetch.source, taken)
        moves.append((place, fetch.destination))
    after = in_groups(moves, planner.temporaries)
    return CopyPlan(
        before, after, bindings, tuple(planner.aliases), tuple(planner.staged), tuple(planner.temporaries.made)
    )


def plan_tensor_copies(pairs: Sequence[tuple[Place, Place]]) -> tuple[Copy | ByteCopy | Bounce, ...]:
    """The steps, for one submit, that copy each source to its destination, in order, on one device.

    Each pair behaves as if its source were read before its destination is written. Neighbours that go on where the last
    one ended become one step. Raises BufferMismatchError for lengths that differ, memory that is not the device's, and
    staging memory that is not addressed in words.
    """
    kept: list[Move] = []
    for source, destination in pairs:
        if source.length != destination.length:
            raise BufferMismatchError(
                f"a source of {source.length} bytes for a destination of {destination.length}; give spans of one length"
            )
        if Kind.HEAP in (source.kind, destination.kind) or source.device != destination.device:
            raise BufferMismatchError(
                f"a copy from {source.memory.name} of {source.device} to {destination.memory.name} of "
                f"{destination.device}; both must be in the memory of one GPU"
            )
        move = (source, destination)
        if is_nothing(move):
            continue
        if kept and follows(kept[-1], move) and not kept[-1][1].overlaps(source):
            kept[-1] = joined(kept[-1], move)
        else:
            kept.append(move)
    steps: list[Copy | ByteCopy | Bounce] = []
    for source, destination in kept:
        step = one_step(source, destination)
        if not isinstance(step, Copy | ByteCopy | Bounce):
            raise not_in_words(source, destination)
        steps.append(step)
    return tuple(steps)


def check_transfers(transfers: Sequence[Transfer]) -> None:
    names: set[str] = set()
    for index, transfer in enumerate(transfers):
        if transfer.name in names:
            raise BindingError(f"{transfer.name!r} is given twice; give each tensor once")
        names.add(transfer.name)
        if transfer.source.length != transfer.destination.length:
            raise BindingError(
                f"{transfer.name!r} has {transfer.source.length} bytes where it is and {transfer.destination.length} "
                "where it goes; they must be as many"
            )
        for other in transfers[:index]:
            if transfer.destination.overlaps(other.destination):
                raise BindingError(
                    f"{other.name!r} and {transfer.name!r} go to the same bytes of buffer "
                    f"{transfer.destination.buffer}; give each its own"
                )


@dataclass
class Planner:
    """Decides where tensors are bound, and notes what it decided."""

    capabilities: Capabilities | None
    staging: MemoryInfo | None
    bound_offsets: int | None
    temporaries: Temporaries
    aliases: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)

    def bind(self, transfer: Transfer, wanted: Place, own: Place, taken: Sequence[Place]) -> Place:
        """Where the session is bound: the caller's `wanted` place if that may be and is not `taken` by another tensor,
        staging memory that the device computes in, or the session's `own` place."""
        if wanted.same(own) or (
            transfer.rebind and self.fits(wanted, own) and not any(wanted.overlaps(place) for place in taken)
        ):
            self.aliases.append(transfer.name)
            return wanted
        if wanted.kind is not Kind.HEAP or own.kind is not Kind.STORAGE:
            return own
        if transfer.rebind and self.staging is not None and self.computes_in(self.staging, own):
            self.staged.append(transfer.name)
            return self.temporaries.place(self.staging, own.length)
        if wanted is transfer.destination and self.capabilities and self.capabilities.staging:
            self.staged.append(transfer.name)
        return own

    def fits(self, wanted: Place, own: Place) -> bool:
        """Whether the caller's place can stand for the session's own."""
        multiple = self.bound_offsets
        aligned = wanted.offset == 0 if multiple is None else wanted.offset % multiple == 0
        return aligned and self.computes_in(wanted.memory, own)

    def computes_in(self, memory: MemoryInfo, own: Place) -> bool:
        """Whether a tensor that the session has at `own` can be in other memory."""
        compatible = devices_are_memory_compatible(memory, own.memory, self.capabilities)
        return compatible and memory.alignment % own.memory.alignment == 0


def in_groups(moves: Iterable[Move], temporaries: Temporaries) -> tuple[Group, ...]:
    """Carry out all moves as if at once.

    Moves through a temporary are loaded first and stored last. The rest go in an order in which none overwrites what
    another has yet to read; where there is none, because they turn in a circle, one of it gets a temporary. Among those
    that may come next, the ones that join the last group are taken.
    """
    single: list[tuple[Place, Place, Step]] = []
    detours: list[list[Step]] = []
    for source, destination in merged(moves):
        steps = route(source, destination, temporaries)
        if len(steps) == 1:
            single.append((source, destination, steps[0]))
        else:
            detours.append(steps)
    ordered: list[Step] = []
    for depth in range(max(map(len, detours), default=1) - 1):
        append(ordered, [steps[depth] for steps in detours if depth < len(steps) - 1])
    while single:
        ready = [item for item in single if not any(item[1].overlaps(o[0]) for o in single if o is not item)]
        if ready:
            last = turn(ordered[-1]) if ordered else 0
            chosen = min(ready, key=lambda item: (turn(item[2]) != last, turn(item[2])))
            ordered.append(chosen[2])
        else:
            chosen = min(circle(single), key=lambda item: (not isinstance(item[2], Bounce), item[0].length))
            detours.append(detour(chosen[0], chosen[1], temporaries))
            ordered += detours[-1][:-1]
        single = [item for item in single if item is not chosen]
    append(ordered, [steps[-1] for steps in detours])
    return grouped(ordered)


def append(ordered: list[Step], steps: Sequence[Step]) -> None:
    """Add steps that do not depend on each other: first those that join the last group."""
    last = turn(ordered[-1]) if ordered else 0
    ordered += sorted(steps, key=lambda step: (turn(step) != last, turn(step)))


def circle(moves: Sequence[tuple[Place, Place, Step]]) -> list[tuple[Place, Place, Step]]:
    """Moves of which each overwrites what the next has yet to read, all around; there must be one."""
    seen = [moves[0]]
    while True:
        blocked = next(item for item in moves if item is not seen[-1] and seen[-1][1].overlaps(item[0]))
        for index, item in enumerate(seen):
            if item is blocked:
                return seen[index:]
        seen.append(blocked)


def merged(moves: Iterable[Move]) -> list[Move]:
    """Without empty moves and those to where the bytes are; neighbours that go on where the last one ended are one."""
    kept: list[Move] = []
    for move in moves:
        if is_nothing(move):
            continue
        if kept and follows(kept[-1], move):
            kept[-1] = joined(kept[-1], move)
        else:
            kept.append(move)
    return kept


def is_nothing(move: Move) -> bool:
    return move[0].length == 0 or move[0].same(move[1])


def follows(first: Move, second: Move) -> bool:
    return first[0].precedes(second[0]) and first[1].precedes(second[1])


def joined(first: Move, second: Move) -> Move:
    source, destination = (replace(a, length=a.length + b.length) for a, b in zip(first, second, strict=True))
    return source, destination


def turn(step: Step) -> int:
    """0 for what the host does at once, 1 for what a submit does, 2 for what waits for it."""
    if isinstance(step, Readback) or (isinstance(step, HostCopy) and step.mapped):
        return 2
    return 0 if isinstance(step, Upload | HostCopy) else 1


def grouped(steps: Sequence[Step]) -> tuple[Group, ...]:
    """Steps of one turn that follow each other are one group; its readbacks share a staging buffer."""
    groups: list[Group] = []
    start = 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and turn(steps[end]) == turn(steps[start]):
            continue
        taken: list[Step] = []
        staging = 0
        for step in steps[start:end]:
            if isinstance(step, Readback):
                taken.append(replace(step, staging_offset=staging))
                staging += round_up(step.window[1], STAGING_SLOT)
            else:
                taken.append(step)
        groups.append(Group(KINDS[turn(steps[start])], tuple(taken), staging))
        start = end
    return tuple(groups)
