"""Computes a model's memory on a device, and the largest sequences, from its graph before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import BufferMismatchError, OptionError
from ..fallback import fall_back
from ..host.storage_interface import Progress
from ..memory import (
    AlignmentRequirements,
    DeviceBuffer,
    DeviceSpan,
    Fit,
    Loan,
    MemoryRequirements,
    Pool,
    Pools,
    PoolSize,
    Rows,
    check_pools,
    fits,
    plan,
    pool_item,
    row_items,
    row_prefix,
    tape_scratch_items,
    weight_items,
)
from .device_interface import DeviceInterface
from .run_inputs import require_fed, sequence_items

if TYPE_CHECKING:
    from ..graph import Activations, GraphDescription, SplitWeight, WeightEntry

__all__ = ["ModelMemory", "capacity_for", "require_lengths", "requirements"]

NO_SCRATCH = "the tape has no scratch: it plays recorded kernels only"

CAPACITY_STEP = 256
"""KV caches have a multiple of this many positions, so that sequences of similar length share a tape."""


def capacity_for(max_length: int, context_length: int) -> int:
    """The number of positions in the KV cache of a sequence of `max_length` tokens."""
    return min(-(-max_length // CAPACITY_STEP) * CAPACITY_STEP, context_length)


def require_lengths(batch_size: int, max_length: int, context_length: int) -> None:
    """Raise OptionError unless there is at least one sequence, of 1 to `context_length` tokens."""
    if batch_size < 1 or not 1 <= max_length <= context_length:
        raise OptionError(
            f"batch_size {batch_size}, max_length {max_length}: batch_size is at least 1, max_length from 1 to the "
            f"context length of {context_length}"
        )


def unmeasured(rows: int, capacity: int, kind: Rows) -> PoolSize | None:
    """The default of `ModelMemory.measured`: None, since scratch is unknown before the first recording."""
    return None


def apart_from_another(rows: int, capacity: int) -> bool:
    """The default of `ModelMemory.joint`: False, since no step advances several rows."""
    return False


def of_onnxruntime(rows: int, capacity: int, kind: Rows) -> str:
    """The default of `ModelMemory.tape_scratch`: the reason why devices and models without tapes take no scratch."""
    return "onnxruntime allocates the scratch of its runs itself and takes no buffers for it"


def no_scratch(reason: str) -> BufferMismatchError:
    """The error for scratch that was given to a model without any."""
    return BufferMismatchError(f"buffers for scratch were given; the model takes none: {reason}; leave scratch out")


def requirements(
    description: GraphDescription,
    weights: Sequence[WeightEntry],
    *,
    batch_size: int,
    max_length: int,
    chunk: int,
    device: str = "webgpu",
    scratch: PoolSize | None = None,
    activations: Activations | None = None,
    rows: Rows = "separate",
    apart: bool = False,
    tape_scratch: Sequence[int] | str = "no tape exists yet",
    split: tuple[SplitWeight, ...] = (),
    encoder: Sequence[tuple[str, int]] = (),
) -> MemoryRequirements:
    """The memory that the weights and `batch_size` sequences of `max_length` positions need.

    `scratch` is the size measured once a session has run. Before that it is estimated from the prefill graph's
    `activations`, the largest set of tensors alive at once in a run over `chunk` tokens; without both it is 0 and
    inexact. `rows` and `apart` say how the sequences are held; `tape_scratch` has the bytes of each scratch buffer of
    their tapes, or the reason why these are unknown; `split` has the weights that are larger than a binding, `encoder`
    the names and bytes of those of the model's encoder.
    """
    one = sequence_items(description, max_length, chunk, apart=apart)
    if rows == "joint":
        held = (*one, *row_items(description, batch_size, max_length, chunk))
    else:
        prefixes = [row_prefix(row, batch_size) for row in range(batch_size)]
        held = tuple(replace(item, name=prefix + item.name) for prefix in prefixes for item in one)
    between = () if isinstance(tape_scratch, str) else tape_scratch_items(tape_scratch)
    beside = (pool_item(f"encoder {name}", "weights", size) for name, size in encoder)
    items = (*weight_items(weights), *beside, *held, *between)
    if scratch is None:
        # Prompts run one row at a time.
        estimate = activations.peak(1, min(chunk, max_length), max_length) if activations else 0
        scratch = PoolSize(estimate + sum(item.bytes for item in between), exact=False)

    def size(pool: Pool) -> PoolSize:
        return PoolSize(sum(item.bytes for item in items if item.pool == pool))

    return MemoryRequirements(
        device=device,
        batch_size=batch_size,
        max_length=max_length,
        weights=size("weights"),
        scratch=scratch,
        persistent=size("persistent"),
        io=size("io"),
        items=items,
        rows=rows,
        no_scratch=tape_scratch if isinstance(tape_scratch, str) else "" if tape_scratch else NO_SCRATCH,
        split=split,
        looked_up=0 if description.tables else description.looked_up,
    )


@dataclass(frozen=True)
class Borrowed:
    """The user's buffers by borrower: each sequence, the joint rows, and the scratch of tapes."""

    sequences: tuple[Loan | None, ...]
    rows: Loan | None
    scratch: Loan | None

    def end(self) -> None:
        """Release all these buffers."""
        for loan in (*self.sequences, self.rows, self.scratch):
            if loan is not None:
                loan.end()


@dataclass(frozen=True)
class ModelMemory:
    """The memory of a model's graph on a device; lengths count tokens, sizes bytes."""

    interface: DeviceInterface
    description: GraphDescription
    weights: tuple[WeightEntry, ...]
    chunk: int
    """Most prompt tokens of one run."""
    context_length: int
    activations: Activations | None = None
    measured: Callable[[int, int, Rows], PoolSize | None] = unmeasured
    """Bytes of scratch by rows and capacity, of decoders that were made."""
    joint: Callable[[int, int], bool] = apart_from_another
    """Whether one step advances these rows of a capacity."""
    apart: bool = False
    """Whether attention writes its caches to buffers apart from those that it reads."""
    tape_scratch: Callable[[int, int, Rows], Sequence[int] | str] = of_onnxruntime
    """Bytes of the buffers between the kernels of the tapes by rows and capacity, or the reason why these are unknown
    or cannot be given.
    """

    split: tuple[SplitWeight, ...] = ()
    """The weights of the file that are larger than the GPU adapter binds."""
    encoder: tuple[tuple[str, int], ...] = ()
    """Names and bytes of the weights of the model's encoder, which is on the device beside the decoder."""
    room: int = 0
    """Tokens of the sequence that has to fit before a load begins; 0 is the shortest one."""
    most: int | None = None
    """Bytes that the device holds in all; None where it does not report them."""
    draft: ModelMemory | None = None
    """That of the draft model, which has one sequence."""

    def __post_init__(self) -> None:
        require_fed(self.description)

    def requirements(self, batch_size: int, max_length: int) -> MemoryRequirements:
        """The memory of the weights and of `batch_size` sequences, and that of the draft model."""
        found, draft = self._of_model(batch_size, max_length), self.draft
        if draft is None:
            return found
        return replace(found, draft=draft.requirements(1, min(max_length, draft.context_length)))

    def _of_model(self, batch_size: int, max_length: int) -> MemoryRequirements:
        capacity = capacity_for(max_length, self.context_length)
        if batch_size > 1 and self.joint(batch_size, capacity):
            together = self._requirements(batch_size, capacity, "joint")
            if fits(together, self.interface.about(), budget=self.most):
                return together
        return self._requirements(batch_size, capacity, "separate")

    def _requirements(self, batch_size: int, capacity: int, rows: Rows) -> MemoryRequirements:
        return requirements(
            self.description,
            self.weights,
            batch_size=batch_size,
            max_length=capacity,
            chunk=self.chunk,
            device=self.interface.type,
            scratch=self.measured(batch_size, capacity, rows),
            activations=self.activations,
            rows=rows,
            apart=self.apart,
            tape_scratch=self.tape_scratch(batch_size, capacity, rows),
            split=self.split,
            encoder=self.encoder,
        )

    def alignment(self) -> AlignmentRequirements:
        """Start, size and span alignments of buffers that a sequence may borrow."""
        return AlignmentRequirements.of(self.interface.get_memory_info(), self.interface.about())

    def fit(self, batch_size: int, max_length: int | None = None, budget: int | None = None) -> Fit:
        """Whether these sequences fit the device, and the largest max_length that fits; without a length, whether the
        longest sequence fits. Raises OptionError for impossible lengths.
        """
        length = self.context_length if max_length is None else max_length
        require_lengths(batch_size, length, self.context_length)
        found = self._planned(batch_size, length, budget)
        if found:
            return found
        asked = (found, batch_size, length, budget)
        return replace(found, by_cache=self._by_cache(*asked), in_parts=self._in_parts(*asked))

    def _planned(self, batch_size: int, length: int, budget: int | None) -> Fit:
        about = self.interface.about()
        limits = [each for each in (budget, self.most) if each is not None]
        found = plan(
            lambda length: self.requirements(batch_size, length),
            length,
            about,
            at_most=self.context_length,
            budget=min(limits, default=None),
        )
        return replace(found, machine=about.machine_memory)

    def _by_cache(self, found: Fit, batch_size: int, length: int, budget: int | None) -> dict[str, int]:
        """Compute `Fit.by_cache`. It is empty on the CPU, whose caches are of floats."""
        by_cache = {}
        for bits in self.description.fewer_bits if self.interface.type == "webgpu" else ():
            smaller = self._with_cache_bits(bits)
            if smaller is None:
                continue
            longest = smaller._planned(batch_size, length, budget).largest_max_length or 0
            if longest > (found.largest_max_length or 0):
                by_cache[f"int{bits}"] = longest
        return by_cache

    def _with_cache_bits(self, bits: int) -> ModelMemory | None:
        """With caches of that type in the model and its draft model; None if the draft model cannot have them."""
        draft = self.draft
        if draft is not None:
            if bits not in draft.description.fewer_bits:
                return None
            draft = replace(draft, description=draft.description.with_cache_bits(bits))
        return replace(self, description=self.description.with_cache_bits(bits), draft=draft)

    def _in_parts(self, found: Fit, batch_size: int, length: int, budget: int | None) -> int:
        """Compute `Fit.in_parts`."""
        if self.interface.type != "webgpu" or self.description.whole:
            return 0
        longest = replace(self, description=self.description.head_by_head())
        most = longest._planned(batch_size, length, budget).largest_max_length or 0
        return most if most > (found.largest_max_length or 0) else 0

    def before_load(self, progress: Progress) -> None:
        """Report the size of the weights before any is read, and warn of a machine that may be too small for them.
        Raises OutOfMemoryError if the device cannot hold them with a sequence of `room` tokens."""
        about, length = self.interface.about(), min(max(self.room, 1), self.context_length)
        wanted = replace(fits(self.requirements(1, length), about, budget=self.most), machine=about.machine_memory)
        if not wanted:
            self.fit(1, length).require()
        if wanted.tight:
            fall_back("room for the model in this machine", wanted.tight, "it is loaded anyway")
        progress("weights", 0, wanted.requirements.weights.bytes - sum(size for _, size in self.encoder))

    def lend(self, rows: int, capacity: int, pools: Pools) -> Borrowed:
        """Check the user's buffers for these rows, and reserve them until they are released. Raises
        BufferMismatchError.
        """
        need = self.requirements(rows, capacity)
        if pools.scratch is not None and need.no_scratch:
            raise no_scratch(need.no_scratch)
        items = {item.name: item for item in need.items}
        spans = check_pools(need.items, pools, self.interface.get_memory_info(), self.alignment())

        scratch = {name: spans.pop(name) for name, item in items.items() if item.pool == "scratch" and name in spans}

        def taken(names: Collection[str], prefix: str = "") -> Loan | None:
            whole = [name.removeprefix(prefix) for name in names if items[name].bound]
            return Loan({name.removeprefix(prefix): spans[name] for name in names}, whole=whole) if names else None

        if need.rows == "joint":
            together = {item.name for item in row_items(self.description, rows, capacity, self.chunk)} & spans.keys()
            sequences, joint = [taken(spans.keys() - together)], taken(together)
        else:
            prefixes = [row_prefix(row, rows) for row in range(rows)]
            sequences = [taken([name for name in spans if name.startswith(prefix)], prefix) for prefix in prefixes]
            joint = None
        between = Loan(scratch, whole=list(scratch), shared=True) if scratch else None
        return Borrowed(tuple(sequences), joint, between)

    def lend_scratch(self, rows: int, capacity: int, scratch: Mapping[str, DeviceBuffer | DeviceSpan]) -> Loan:
        """Check the user's buffers for the scratch of tapes, and reserve them until they are released. Raises
        BufferMismatchError.
        """
        loan = self.lend(rows, capacity, Pools(scratch=scratch)).scratch
        assert loan is not None
        return loan
