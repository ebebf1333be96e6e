"""Defines Python's interface to the WebGPU engine: integer handles represent objects that JavaScript holds
(web/src/worker/engine.ts).

The protocols here are the table of the calls. For each method `build.py` writes the call in `_js/engine_calls.py` and
its type in web/src/worker/engine_calls.ts, which JavaScript's classes implement (buildtools/wire.py). `js` names the
object that has the method; methods that are marked `by_hand` are in JsGpuEngine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from ...graph import FedLengths
from ...host.storage_interface import Sink
from ...memory import BufferRequest
from ...stages import SamplerProgram
from ...weights.shared import SharedWeights
from ..ort_session import ModelSession

__all__ = [
    "NOT_FUSED",
    "BeamSpec",
    "BoundTensor",
    "Difference",
    "GpuAdapter",
    "GpuBuffers",
    "GpuEngine",
    "GpuSampling",
    "GpuSessions",
    "GpuTapes",
    "GpuTiming",
    "SamplerSpec",
    "WeightPiece",
]

T = TypeVar("T")


def js(place: Literal["engine", "sessions", "tapes", "sampling"], span: str = "") -> Callable[[T], T]:
    """Declares the JavaScript object that implements a method, or all methods of a class: the engine, its `sessions`,
    its `tapes` or its `sampling`. A trace shows each call as a span of the given name.
    """
    return lambda declared: declared


def by_hand(declared: T) -> T:
    """Declares that JsGpuEngine implements this method, because it makes more than one call."""
    return declared


@dataclass(frozen=True)
class BoundTensor:
    """A session input or output bound to a buffer; dtype by ONNX Runtime's name, as in 'float16'. Sizes are
    those of a run_input.RunTensor."""

    name: str
    buffer: int
    dtype: str
    dims: tuple[int, ...]


class WeightPiece(NamedTuple):
    """A range of a data file, and the buffer that receives it; offsets and lengths in bytes."""

    buffer: int
    offset: int
    """The offset in the file."""
    length: int
    at: int = 0
    """The offset in the buffer; a multiple of 4."""
    change: tuple[Any, ...] | None = None
    """The kind and the fields of a capstan.graph.Change."""


@dataclass(frozen=True)
class SamplerSpec:
    """Buffers that the sampler reads and advances; sizes in elements."""

    logits: int
    logits_type: str
    vocab: int
    state: tuple[int, int, int]
    ring: tuple[int, int, int]
    """Handle, offset and bytes."""
    ring_capacity: int
    input_ids: int
    mask: int
    max_length: int
    position_ids: int | None
    owner: str
    rows: int = 1
    """The number of sequences; each buffer has a part for each of them."""


@dataclass(frozen=True)
class BeamSpec:
    """Buffers that a beam search reads and advances, and its options; sizes in elements."""

    logits: int
    logits_type: str
    vocab: int
    rows: int
    """The beams of all prompts."""
    beams: int
    """The beams of one prompt."""
    looked: int
    """The number of continuations of each beam that compete."""
    ends: tuple[int, ...]
    """End-of-sequence ids."""
    state: tuple[int, int, int]
    """Handle, offset and bytes."""
    input_ids: int
    table: int
    """u32 [rows, capacity]: the row whose caches hold a position of a row."""
    scores: int
    """float32 [rows]."""
    capacity: int
    """The capacity of a row in positions."""
    owner: str


@dataclass(frozen=True)
class Difference:
    """The difference of two float buffers."""

    max_difference: float
    max_magnitude: float
    unlike: int
    """Elements that are finite in just one of the two."""
    relative: float
    """Square root of the sum of the squares of the differences, divided by that of the second buffer's values."""


NOT_FUSED: Mapping[str, Any] = {"scratch": [], "kernels": [], "owner": ""}
"""The specification of a tape without Capstan's kernels."""


@js("engine")
class GpuAdapter(Protocol):
    """Calls for the device itself. Raises errors of capstan.errors; sizes and offsets are bytes."""

    number: int
    """The number of the device within the page: buffers of one cannot be used on another."""

    @by_hand
    def retain(self) -> Self: ...
    @by_hand
    def close(self) -> None: ...
    def adapter(self) -> dict[str, Any]: ...
    def healthy(self) -> bool: ...
    def counters(self) -> dict[str, int]: ...
    def ledger(self) -> list[dict[str, Any]]: ...


@js("engine")
class GpuBuffers(GpuAdapter, Protocol):
    """Makes, writes, reads and compares buffers, and fills them from data files."""

    def create_buffer(self, label: str, size: int, category: str, owner: str) -> int: ...
    async def create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]:
        """Make all buffers or none. Raises OutOfMemoryError if memory is short, which does not lose the device. If the
        wait is cancelled, all are freed."""

    def destroy_buffer(self, buffer: int) -> None: ...
    def write(self, buffer: int, offset: int, data: bytes | bytearray | memoryview) -> None: ...
    def fill(self, buffer: int, byte: int) -> None: ...
    def create_staging(self, label: str, size: int, owner: str) -> int: ...
    @by_hand
    async def read_all(self, parts: Sequence[tuple[int, int, bytearray | memoryview]]) -> tuple[float, float]: ...
    @by_hand
    async def read(self, buffer: int, offset: int, size: int) -> bytes: ...
    def execute(self, steps: Sequence[Sequence[Any]]) -> None: ...
    async def shortlist(
        self, buffer: int, dtype: str, vocab: int, count: int, start: int = 0, rows: int = 1
    ) -> Sequence[float]:
        """The best tokens of `rows` rows of logits that begin at element `start` of a buffer. For each row: the sum of
        exp(logit - largest), then `count` pairs of logit and token, largest first."""

    def score(self, buffer: int, dtype: str, vocab: int, skipped: int, rows: int, slots: int, first: int) -> None:
        """Queue the scoring of tokens by `rows` rows of logits, which follow `skipped` other rows. Slots, beginning
        with slot `first`, have four u32 each and begin with a token. The kernel replaces the slot by the token's logit,
        the best token, the best token's logit and the sum of exp(logit - best).
        """

    @js("engine", span="compare with an eager run")
    async def compare(self, pairs: Sequence[tuple[int, int, int, str]]) -> list[Difference]: ...
    @by_hand
    def shared_weights(self) -> SharedWeights:
        """The weights that all users of this device share."""

    @by_hand
    def upload_weights(self, pieces: Sequence[WeightPiece]) -> Sink:
        """A sink for the bytes of a data file, with which it fills these buffers."""


@js("sessions")
class GpuSessions(GpuAdapter, Protocol):
    """Makes sessions of onnxruntime-web, binds them to buffers and runs them."""

    @by_hand
    async def open_session(
        self, model: bytes, weights: Sequence[BoundTensor], owner: str, capture: bool
    ) -> ModelSession:
        """A session of any model; `weights` are bound to inputs that the session hides."""

    @by_hand
    def session_handle(self, session: ModelSession, owner: str) -> int: ...
    @js("sessions", span="create a session")
    async def create_session(self, model: bytes, capture: bool, owner: str, cache_bits: int) -> int:
        """Make a session; `cache_bits` is the number of bits of an element of the key/value caches, 4 or 8; 0 keeps the
        graph's type.
        """

    def lazy_session(self, model: bytes, owner: str, cache_bits: int) -> int:
        """A session without capture that `make_session` makes, else its first run; that raises its error."""

    @js("sessions", span="create a session")
    async def make_session(self, session: int) -> None: ...

    async def release_session(self, session: int) -> None: ...
    def bind(
        self,
        session: int,
        feeds: Sequence[BoundTensor],
        fetches: Sequence[BoundTensor],
        lengths: FedLengths | None = None,
    ) -> int:
        """Bind buffers to the inputs and outputs of a session; each run fills in the inputs that `lengths` names."""

    def unbind(self, binding: int) -> None: ...
    async def run(self, binding: int, valid: int = 0, tokens: int = 1, base: int = 0) -> None:
        """Run a binding. Some bindings depend on these numbers: `valid` counts the valid positions after the run,
        `tokens` the positions that it adds; `base` is the first position that sliding caches hold.
        """

    async def idle(self) -> None:
        """Wait for the end of every run and recording, including those of cancelled callers."""


@js("tapes")
class GpuTapes(GpuAdapter, Protocol):
    """Records runs, and makes tapes that play them."""

    @js("sessions", span="record a run")
    async def record(self, binding: int) -> dict[str, Any]:
        """Record a run of a binding. Raises OutOfMemoryError if the run cannot allocate its memory; the device stays
        usable.
        """

    @js("sessions")
    def retire(self, binding: int) -> None: ...
    @js("engine")
    def recorded_id(self, buffer: int) -> int: ...
    @js("tapes", span="make a tape")
    async def make_tape(
        self, recording: int, played: Sequence[Any], written: Sequence[int], fused: Mapping[str, Any] = NOT_FUSED
    ) -> int:
        """A tape of `played` operations; `fused` is a FusedSpec of web/src/worker/gpu/fused.ts and adds Capstan's
        kernels. Raises OutOfMemoryError without memory for their scratch; the device stays usable.
        """

    async def store_tape(self, tape: int, given: Sequence[int]) -> dict[str, Any]:
        """Describe a tape as a StoredTape of web/src/worker/gpu/stored_tape.ts; `given` are the recorded ids of the
        buffers that its restoration will bind. Raises TapeError if it cannot be stored.
        """

    @js("tapes", span="restore a stored tape")
    async def restore_tape(self, stored: Mapping[str, Any], given: Mapping[int, int], owner: str) -> int:
        """Restore a stored tape over the buffers in `given`, which maps recorded ids to handles. Raises TapeError, and
        OutOfMemoryError, after which the device stays usable.
        """

    def tape_scratch(self, tape: int) -> list[int]:
        """Bytes of each scratch buffer of a tape's kernels."""

    async def give_scratch(self, tape: int, spans: Sequence[tuple[int, int, int]] | None) -> None:
        """Give a tape's kernels (handle, offset, bytes) for each scratch buffer; with None the tape allocates its own.
        Raises OutOfMemoryError; in that case the kernels keep their buffers.
        """

    def add_table(self, tape: int, counts: bytes) -> None: ...
    def poison(self, tape: int, recording: int, buffers: Sequence[int]) -> None: ...
    @js("tapes", span="compare with the truth")
    async def witness(self, recording: int, tape: int, length: int, spec: Mapping[str, Any]) -> bytes:
        """Play a step of a tape (none if 0) that sees `length` positions, with the kernels of a WitnessSpec of
        web/src/worker/gpu/witness.ts before and after it; returns the bytes that the spec reads back. Raises
        OutOfMemoryError if its scratch cannot be allocated; the device stays usable.
        """

    async def counts_by_length(
        self, recording: int, steps: Sequence[Any], source: int, offset: int, mask: int, lengths: int
    ) -> bytes: ...
    async def counts_of_step(self, tape: int, length: int) -> bytes: ...
    def close_tape(self, tape: int) -> None: ...
    @js("sessions")
    def drop_recording(self, recording: int) -> None: ...
    def play_once(self, tape: int, length: int) -> None: ...


@js("sampling")
class GpuSampling(GpuAdapter, Protocol):
    """Picks tokens on the device, and submits bursts of steps with picks."""

    def make_sampler(self, spec: SamplerSpec) -> int: ...
    @by_hand
    def set_sampling(self, sampler: int, program: SamplerProgram) -> None: ...
    def set_allowed(self, sampler: int, mask: bytes, row: int = 0) -> None:
        """Set the tokens that a row's next pick may take: a bit each, in u32 words. The sampler's program must have a
        mask.
        """

    def set_sampler_own(self, sampler: int, words: bytes, row: int = 0) -> None:
        """Write all or the first of a stage's own words in a row's memory. The sampler's program must have `own_at`."""

    def set_sampler_memory(self, sampler: int, rows: bytes, row: int = 0) -> None:
        """Write the memory of the rows from `row` on: `SamplerProgram.row` of each sequence. The sampler's program must
        have `row_words`."""

    def destroy_sampler(self, sampler: int) -> None: ...
    def burst(
        self, tape: int, sampler: int, picks: int, sample_first: bool, length: int, cursor: int
    ) -> Awaitable[Sequence[float]]:
        """Submit a burst of `picks` steps. Returns the fields of a Burst except its ids, then the ids, row by row."""

    def set_drafts(
        self,
        sampler: int,
        input_ids: int,
        logits: int,
        positions: int,
        drafter: int = 0,
        states: Sequence[tuple[int, int, int]] = (),
        head: Sequence[int] = (),
    ) -> None:
        """Let steps find drafts, for a tape over `positions` positions with these buffers of ids and logits; with the
        draft model's sampler `drafter`, which has drafts over 2 positions, let them take its picks as drafts. Called
        again after each change of the sampler's program. `states` has for each state its buffer, the buffer with the
        state after each position of the step, and the bytes of the state. A drafter that is a multi-token-prediction
        head has drafts over `positions` positions; `head` has the buffers of the hidden states that its step over them
        gives, that its step over one gives and that this one reads, and the bytes of a hidden state.
        """

    def drafted_burst(
        self,
        tape: int,
        sampler: int,
        steps: int,
        positions: int,
        length: int,
        cursor: int,
        pair_tape: int = 0,
        drafter_tape: int = 0,
    ) -> Awaitable[Sequence[float]]:
        """As `burst`, for drafted steps over a tape of `positions` positions. Each step gives `positions` ids, with
        0xFFFFFFFE for a position without a pick. `length` is the largest possible length of the sequence. With a draft
        model, each step first plays that model's tapes: over the last two tokens, then over each pick but the last.
        """

    def make_beam_search(self, spec: BeamSpec) -> int: ...
    def destroy_beam_search(self, search: int) -> None: ...
    def beam_burst(
        self, tape: int, search: int, picks: int, choose_first: bool, length: int, cursor: int
    ) -> Awaitable[Sequence[float]]:
        """As `burst`, but each step makes choices of a beam search in place of picks, and gives a record in place of
        ids: the u32 words of web/src/worker/shaders/sampler/beams.wgsl.
        """

    def eager_burst(
        self, binding: int, valid: int, sampler: int, cursor: int, base: int = 0
    ) -> Awaitable[Sequence[float]]: ...


@js("sampling")
class GpuTiming(GpuAdapter, Protocol):
    """Measures the time of work on the device."""

    @js("engine")
    async def work_done(self) -> float:
        """Wait until the device has done all submitted work; returns the time at which it ended, on the worker's
        clock.
        """

    async def step_time(self, tape: int, sampler: int, steps: int, length: int) -> float:
        """The GPU time of one step in milliseconds, measured in one submit of `steps` steps."""

    async def operation_times(
        self, tape: int, sampler: int, length: int
    ) -> list[tuple[int, str, float, list[tuple[str, str, int]]]]:
        """(place, label, milliseconds, bindings) of each dispatch of a step, when each dispatch is in a separate pass;
        a binding is the buffer's label, its category and the bytes that are bound. The sampler's dispatches are left
        out."""

    async def replay(
        self, tape: int, sampler: int, steps: int, picks: int, length: int, cursor: int, in_flight: int
    ) -> float:
        """Milliseconds a pick in bursts that JavaScript alone submits and reads."""


class GpuEngine(GpuBuffers, GpuSessions, GpuTapes, GpuSampling, GpuTiming, Protocol):
    """One WebGPU device with onnxruntime-web on it: all protocols above."""
