"""Loads a model onto WebGPU: its weights, its sessions, and the findings of earlier loads."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count

from ...errors import CapstanError, DeviceUnavailableError
from ...fallback import fall_back
from ...graph import GraphDescription, WeightEntry
from ...host.load_times import phase
from ...host.notes import Notes, build
from ...host.storage_interface import Progress
from ...memory import Capabilities
from ...model_files.genai_config import GenaiConfig
from ...tape import PASSES
from ...weights.shared import Lease, SharedWeights
from ..model_interface import TapeOptions
from ..model_memory import ModelMemory
from ..table_reader import TableReader, open_tables
from .gpu_engine import GpuEngine, GpuSessions
from .prefill_chunk import prefill_chunk
from .tapes.stored_tapes import StoredTapes, expects_stored
from .tapes.verdicts import Verdicts
from .webgpu_device import WebGpuDevice
from .webgpu_graphs import Graphs, OpenWeights
from .weight_lease import lease

__all__ = ["Loaded", "eager_picks", "load", "load_adapted", "release_made", "webgpu_memory"]

LARGE, LATE = 64 << 20, 24
"""On software adapters, steps over more than LARGE bytes of weights are recorded after LATE eager steps; see
eager_picks.
"""


SHARED = ("prefill", "placed prefill")
"""The graphs of sessions that all sequences share; only models that see have the second."""
numbers = count(1)
"""Numbers the models of this page, so that each is a separate owner in the ledger."""


@dataclass(frozen=True)
class LoraSource:
    """Makes models for LoRA adapters: it has their graphs by rank, and the weights."""

    graphs: Callable[[int], Awaitable[Graphs]]
    """The graphs for a rank."""
    shared: SharedWeights
    open_weights: OpenWeights


@dataclass(frozen=True)
class Loaded:
    """Everything that a WebGpuModel is made from and frees when it closes."""

    interface: WebGpuDevice
    memory: ModelMemory
    graphs: Graphs
    leases: Sequence[Lease]
    weights: dict[str, int]
    """Buffers by name."""
    sessions: Mapping[str, int]
    """The sessions that all sequences share, by name: 'prefill', and 'placed prefill' in models that see. Decoders have
    one each."""
    lazy: bool
    """Whether these sessions are made later, at the latest by their first runs."""
    ahead: asyncio.Future[int] | None
    """The first sequence's captured session, made beside the load of the weights."""
    stored: StoredTapes
    verdicts: Verdicts
    run_tokens: int | None
    """The size of prefill runs that an earlier load settled."""
    name: str
    owner: str
    config: GenaiConfig
    contents: Sequence[str | None]
    """The key that shares each data file's bytes; None if its source has no identity."""
    notes: Notes | None
    """Storage for findings about decode steps; None unless a later load can identify the same weights."""
    lora: LoraSource | None
    """The source of graphs for LoRA adapters; None for a model without inputs for them."""
    in_place: bool
    """Whether attention may write to the caches that it reads."""
    disk: TableReader | None = None
    """Reads the rows of tables on disk; each model for LoRA adapters has its own."""

    @property
    def engine(self) -> GpuEngine:
        return self.interface.engine

    @property
    def about(self) -> GraphDescription:
        """The graph of decode steps."""
        return self.graphs.description

    @property
    def cache_bits(self) -> int:
        """Bits of an element of quantized caches; 0 for others."""
        return self.config.decoder.kv_cache_bits

    @property
    def chunk(self) -> int:
        """Most tokens of a prefill run."""
        return self.memory.chunk


def passes_for(software: bool) -> tuple[str, ...]:
    """The passes over a recorded step, if the user chooses none.

    Dawn validates each indirect dispatch in a pass of its own. A table of workgroup counts replaces these dispatches,
    but some kernels must fill it for each length. On software adapters the table costs more, so indirect dispatches
    stay. There, recording and checking prefill runs and steps of several rows also takes longer than it saves.
    """
    return tuple(name for name in PASSES if not (software and name in ("direct", "prefill", "rows")))


def eager_picks(software: bool, graphs: Graphs) -> int:
    """The number of picks after which it pays to record and check a decode step: one, since the first token needs no
    step. On a software adapter, recording and checking take as long as LATE eager steps, so they pay only for longer
    answers.

    Measured with SmolLM2-135M on SwiftShader (two cores, 2026-11-25): 57 s; an eager step takes 2.4 s, a replayed step
    0.7 s.
    """
    size = sum(entry.length for entry in graphs.weights)
    return LATE if software and size > LARGE else 1


def webgpu_memory(interface: WebGpuDevice, graphs: Graphs, config: GenaiConfig) -> ModelMemory:
    """The GPU memory that the rewritten graphs need."""
    software, context = interface.about().software, graphs.description.context_within(config.context_length)
    chunk = 1 if graphs.one_row else prefill_chunk(graphs.activations, context, software=software)
    about = graphs.description
    possible = "rows" in passes_for(software) and about.capturable and not about.alone
    return ModelMemory(
        interface,
        about,
        graphs.weights,
        chunk,
        context,
        graphs.activations,
        joint=lambda rows, capacity: possible,
        split=graphs.split,
        encoder=config.weights_beside,
        room=config.room,
    )


async def make_session(engine: GpuSessions, graphs: Graphs, name: str, owner: str, cache_bits: int) -> int:
    model, capture = graphs.sessions[name].model, name == "decoder"
    with phase("decode session" if capture else "session"):
        return await engine.create_session(model, capture=capture, owner=owner, cache_bits=cache_bits)


async def shared_sessions(
    engine: GpuSessions, graphs: Graphs, owner: str, cache_bits: int, lazy: bool = False
) -> dict[str, int]:
    """Make the sessions that all sequences share, by name; a failure releases all of them. `lazy` sessions are made
    later, at the latest by their first runs.
    """
    made: dict[str, int] = {}
    names = [name for name in SHARED if name in graphs.sessions]
    try:
        for name in names:
            if lazy:
                with phase("session"):
                    made[name] = engine.lazy_session(graphs.sessions[name].model, owner, cache_bits)
            else:
                made[name] = await make_session(engine, graphs, name, owner, cache_bits)
    except BaseException:
        for session in made.values():
            await engine.release_session(session)
        raise
    return made


async def release_made(engine: GpuSessions, made: Awaitable[int]) -> None:
    """Release a session without a user, once it is made."""
    with suppress(CapstanError):
        await engine.release_session(await made)


def require_capable(found: Capabilities, about: GraphDescription) -> bool:
    """Whether past and present may be one buffer. Raises DeviceUnavailableError if a capability is missing that nothing
    can replace."""
    reasons = dict(found.missing)
    if not found.staging:
        raise DeviceUnavailableError(f"this adapter cannot read results back: {reasons['staging']}; use device='wasm'")
    if about.needs_f16 and not found.f16:
        raise DeviceUnavailableError(
            f"the model computes in float16 and {reasons['f16']}; "
            "export it with use_webgpu_fp32=true, or use device='wasm'"
        )
    if not found.in_place_cache:
        instead = (
            "caches are written to separate buffers and copied after each step, which is neither captured nor taped"
        )
        fall_back("one buffer for past and present", reasons["in_place_cache"], instead)
    return found.in_place_cache


def facts_of(interface: WebGpuDevice, graphs: Graphs, contents: Sequence[str | None]) -> str:
    """The facts that decide whether a verdict about a decode step still holds: Capstan, device, browser, graph and
    weights.
    """
    device = asdict(interface.about())
    facts = [
        build(),
        device | {"features": sorted(device["features"])},
        hashlib.sha256(graphs.sessions["decoder"].model).hexdigest(),
        contents,
    ]
    return json.dumps(facts, sort_keys=True)


async def load(
    interface: WebGpuDevice,
    shared: SharedWeights,
    url: str,
    reading: Awaitable[Graphs],
    config: GenaiConfig,
    options: TapeOptions,
    open_weights: OpenWeights,
    progress: Progress,
    notes: Notes | None = None,
    lora_graphs: Callable[[int], Awaitable[Graphs]] | None = None,
) -> Loaded:
    """Load the weights that are not on the device yet and make the prefill session; nothing stays allocated on failure.
    `reading` may still be under way. `notes` keep findings about decode steps for later loads. `lora_graphs` makes the
    graphs for adapters of a rank.
    """
    engine = interface.engine
    probing = asyncio.ensure_future(probed(interface, notes, url))
    try:
        graphs = await reading
        memory = webgpu_memory(interface, graphs, config)
        memory.before_load(progress)
    except BaseException:
        probing.cancel()
        await asyncio.wait([probing])
        raise
    owner = f"{url} model {next(numbers)}"
    bits = config.decoder.kv_cache_bits
    # Weights do not wait for the first probe of an adapter, for which onnxruntime-web has to be compiled. The sessions
    # are made after it, so that no buffer of its runs counts as theirs.
    coming = asyncio.ensure_future(weights_of(engine, shared, graphs, open_weights, url, progress))
    making = ahead = disk = None
    try:
        found, stores = await probing
        # Stored tapes run without onnxruntime-web, whose start would delay the first token.
        making = asyncio.ensure_future(shared_sessions(engine, graphs, owner, bits, lazy=stores))
        in_place = require_capable(found, graphs.description) and not graphs.description.growing
        taped = options.capture == "tape" and stores
        soon = eager_picks(interface.about().software, graphs) == 1
        if options.capture != "off" and in_place and not graphs.description.uncapturable and not taped and soon:
            ahead = asyncio.ensure_future(make_session(engine, graphs, "decoder", f"{owner} sequence 1", bits))
        leases, contents = await coming
        disk, read = await open_tables(graphs.description.tables, open_weights, progress)
        contents += read
        weights = {
            entry.name: buffer
            for (_, entries), lease in zip(by_location(graphs.weights), leases, strict=True)
            for entry, buffer in zip(entries, lease.buffers, strict=True)
        }
        # A later load cannot identify weights whose source has no identity.
        kept = notes if None not in contents else None
        stored, verdicts = remembered(interface, graphs, contents, kept, url, weights, stores)
        run_tokens = await verdicts.read_run(memory.chunk, options.prefill_ms)
        # Nothing is awaited after this: a cancelled wait would leak everything.
        sessions = await asyncio.shield(making)
    except BaseException:
        # They continue even if this wait is cancelled.
        if disk is not None:
            disk.close()
        await asyncio.shield(given_up(engine, coming, making, ahead))
        raise
    if disk is not None:
        size = sum(table.row_bytes for table in graphs.description.tables)
        reason = f"each reads {size} bytes of rows for its token from tables on disk"
        fall_back("steps ahead of the reader", reason, "a step begins after its token is read back")
    lora = LoraSource(lora_graphs, shared, open_weights) if lora_graphs and graphs.lora else None
    return Loaded(
        interface=interface,
        memory=memory,
        graphs=graphs,
        leases=leases,
        weights=weights,
        sessions=sessions,
        lazy=stores,
        ahead=ahead,
        stored=stored,
        verdicts=verdicts,
        run_tokens=run_tokens,
        name=url,
        owner=owner,
        config=config,
        contents=contents,
        notes=kept,
        lora=lora,
        in_place=in_place,
        disk=disk,
    )


async def probed(interface: WebGpuDevice, notes: Notes | None, url: str) -> tuple[Capabilities, bool]:
    """The device's capabilities, and whether a note lists stored tapes of the model."""
    with phase("probe"):
        return await asyncio.gather(interface.capabilities(), expects_stored(notes, url))


async def weights_of(
    engine: GpuEngine,
    shared: SharedWeights,
    graphs: Graphs,
    open_weights: OpenWeights,
    url: str,
    progress: Progress,
) -> tuple[list[Lease], list[str | None]]:
    """Load the weights of each data file; returns them with the keys of these files' contents. Nothing stays allocated
    on failure.
    """
    leases: list[Lease] = []
    contents: list[str | None] = []
    with ExitStack() as undo:
        for location, entries in by_location(graphs.weights):
            with phase("weights"):
                file = await open_weights(location)
                report = partial(progress, location)
                leases.append(await lease(engine, shared, file, entries, url + location, report))
            undo.callback(leases[-1].release)
            contents.append(file.content)
        undo.pop_all()
    return leases, contents


async def given_up(
    engine: GpuSessions,
    coming: asyncio.Future[tuple[list[Lease], list[str | None]]],
    making: Awaitable[dict[str, int]] | None,
    ahead: Awaitable[int] | None,
) -> None:
    """Free the parts of a failed load, once each is complete."""
    coming.cancel()
    await asyncio.wait([coming])
    if not coming.cancelled() and coming.exception() is None:
        for held in coming.result()[0]:
            held.release()
    if ahead is not None:
        await release_made(engine, ahead)
    if making is not None:
        with suppress(CapstanError):
            for session in (await making).values():
                await engine.release_session(session)


def by_location(weights: Sequence[WeightEntry]) -> list[tuple[str, list[WeightEntry]]]:
    """Weights by their data file."""
    locations = sorted({entry.location for entry in weights})
    return [(location, [entry for entry in weights if entry.location == location]) for location in locations]


def remembered(
    interface: WebGpuDevice,
    graphs: Graphs,
    contents: Sequence[str | None],
    notes: Notes | None,
    name: str,
    weights: dict[str, int],
    noted: bool = True,
) -> tuple[StoredTapes, Verdicts]:
    """The tapes and verdicts that earlier loads stored for these graphs; `noted` says whether a note lists tapes."""
    facts = facts_of(interface, graphs, contents)
    return StoredTapes(interface.engine, notes, name, facts, weights, noted), Verdicts(notes, name, facts)


async def load_adapted(base: Loaded, rank: int) -> Loaded:
    """The same model for adapters of a rank, over the same weights, with a prefill session of its own. It reads only
    the weights that its graphs combine in another way than the model's graphs. Nothing stays allocated on failure.
    """
    source, interface = base.lora, base.interface
    assert source is not None, "called for models with inputs for adapters"
    graphs = await source.graphs(rank)
    engine, owner, name = interface.engine, f"{base.owner} LoRA {rank}", f"{base.name} with LoRA of rank {rank}"
    memory = webgpu_memory(interface, graphs, base.config)
    known = set(base.graphs.weights)
    weights = {entry.name: base.weights[entry.name] for entry in graphs.weights if entry in known}
    leases: list[Lease] = []
    with ExitStack() as undo:
        for location, entries in by_location([entry for entry in graphs.weights if entry not in known]):
            file, place = await source.open_weights(location), f"{base.name}{location}"
            leases.append(await lease(engine, source.shared, file, entries, place, lambda *_: None))
            undo.callback(leases[-1].release)
            weights.update(zip((entry.name for entry in entries), leases[-1].buffers, strict=True))
        disk, _ = await open_tables(graphs.description.tables, source.open_weights, lambda *_: None)
        if disk is not None:
            undo.callback(disk.close)
        sessions = await shared_sessions(engine, graphs, owner, base.cache_bits)
        undo.pop_all()
    stored, verdicts = remembered(interface, graphs, base.contents, base.notes, name, weights)
    interface.retain()
    return replace(
        base,
        memory=memory,
        graphs=graphs,
        leases=leases,
        weights=weights,
        sessions=sessions,
        lazy=False,
        ahead=None,
        stored=stored,
        verdicts=verdicts,
        run_tokens=None,
        name=name,
        owner=owner,
        lora=None,
        disk=disk,
    )
