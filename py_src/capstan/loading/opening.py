"""Reads a model folder's small files, checks them, and opens the model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..device.device_host import DeviceHost, Opening
from ..device.model_interface import BOUND_MS, DeviceModel, TapeOptions
from ..errors import (
    CapstanError,
    ConfigError,
    DeviceLostError,
    DeviceUnavailableError,
    ModelFileError,
    OptionError,
    OutOfMemoryError,
    StorageError,
)
from ..fallback import fall_back
from ..host import Host, current_host, wait_here
from ..host.load_times import during_load, phase
from ..host.retrying import require_stall_timeout
from ..host.spans import span
from ..host.storage_interface import Progress
from ..model_files.config_section import parse_object
from ..model_files.genai_config import DECODER, ENCODER, GENERATION_CONFIG, VISION, GenaiConfig, with_room
from ..model_files.hub import HubRepository
from ..model_files.model_facts import ModelFacts, facts_of
from ..stages.native_speculation import configured_speculative, speculation_of
from ..stages.search import SearchOptions
from ..tape import PASSES
from .configured_device import CONFIGURED, configured_device, opened_or_on_cpu
from .folder import Place, find_model, no_progress, place_of, with_caches, with_tables
from .found_model import FoundModel
from .load_options import LoadOptions, require_options

__all__ = [
    "PAUSES",
    "Opened",
    "Source",
    "open_model",
    "opened_again",
    "read_configuration",
    "search_options",
    "set_stall_timeout",
    "source_of",
    "facts_report",
]

MakeTokenizer = Callable[[Callable[[str, str], Any], Mapping[str, str]], Any]
"""Makes a tokenizer from the host's function for its backend and the texts of a folder's files."""
CHAT_TEMPLATE = "chat_template.json"
"""The file of processors before transformers 4.49 for the chat template of a model that sees."""
TEMPLATE_FILE = "chat_template.jinja"
LARGE = 8
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", TEMPLATE_FILE)
TEMPLATE = re.compile(r"additional_chat_templates/[^/]+\.jinja")
TOOL_USE = "additional_chat_templates/tool_use.jinja"


def search_options(config: GenaiConfig) -> SearchOptions:
    """The default search options of the model's generators. Raises OptionError."""
    return SearchOptions.from_config(
        config.search,
        eos_token_ids=config.eos_token_ids,
        pad_token_id=config.pad_token_id,
        context_length=config.context_length,
    )


def facts_report(facts: ModelFacts, search: SearchOptions) -> dict[str, Any]:
    """A model's facts in the form for pages (ModelFacts in web/src/wire/protocol.ts); `search` are the options of its
    files.
    """
    told = {name: getattr(facts, name) for name in ("name", "parameters", "bytes", "licence")}
    return {**told, "title": str(facts), "search": search.replace(**facts.search).picking()}


@dataclass(frozen=True)
class Opened:
    """Holds a model that was loaded from a folder, with the folder's small files."""

    folder: str
    config: GenaiConfig
    facts: ModelFacts
    loaded: DeviceModel
    files: dict[str, str]
    """The tokenizer's files, by name."""
    times: dict[str, tuple[float, float]]
    again: Callable[[str], Awaitable[DeviceModel]]
    """Opens the model again, on a device of that name."""
    read_graph: Callable[[str], Awaitable[bytes]]
    """The file of each graph by name, in the opened form."""
    tokenizer: Any
    """The tokenizer, if it was made during the load of the weights; else None."""


@dataclass(frozen=True)
class Source:
    """The arguments of Model that choose the model and the way of opening it."""

    path: Any
    options: LoadOptions
    tape: TapeOptions = field(default_factory=TapeOptions)
    """The tape options; the caller's `capture` replaces the one in these."""
    head: bool = False
    """Whether to open the multi-token-prediction head of the model in place of the model."""
    of_draft: bool = False
    """Whether it is the draft model that the folder's genai_config.json has in `model.draft`."""

    @property
    def keeps_weights(self) -> bool:
        """Whether the caller allows the browser's storage."""
        return not self.options.get("disable_file_mapped_weights")

    def tape_options(self, config: GenaiConfig) -> TapeOptions:
        """The way to run decode steps: the caller's option, else the configuration's, else from a tape."""
        configured = config.decoder.capture
        capture = self.options.get("capture")
        if capture is not None or configured is None:
            return replace(self.tape, capture=capture or "tape")
        return replace(self.tape, capture="tape" if configured.on else "off", configured=configured.where)

    def device_for(self, config: GenaiConfig | None = None) -> str:
        """The device to open. Before the configuration is known, 'auto' stands for the configuration's device."""
        device = self.options.get("device", "auto")
        if not self.is_configured:
            return device
        return "auto" if config is None else configured_device(config)

    @property
    def is_configured(self) -> bool:
        """Whether the configuration names the device, not the caller."""
        return self.options.get("device") == CONFIGURED

    def config_of(self, found: FoundModel) -> GenaiConfig:
        """The model's configuration with the caller's options for caches and tables. Raises OptionError."""
        config = found.config.of_head if self.head else found.config
        config = with_tables(with_caches(config, self.options), self.options)
        return with_room(config, self.options.get("max_length"))


def source_of(path: Any, options: LoadOptions) -> Source:
    """Checks the arguments of Model. Raises OptionError with the choices."""
    require_options(LoadOptions, options)
    passes, prefill_ms = options.get("passes"), options.get("prefill_ms")
    unknown = [name for name in passes or () if name not in PASSES]
    if unknown:
        raise OptionError(f"passes is {passes!r}; it must be a collection of names out of {', '.join(PASSES)}, or None")
    if prefill_ms is not None and not prefill_ms > 0:
        wanted = "a number of milliseconds above 0, math.inf for no bound, or None for the default"
        raise OptionError(f"prefill_ms is {prefill_ms!r}; it must be {wanted}")
    ordered = None if passes is None else tuple(name for name in PASSES if name in passes)
    return Source(path, options, TapeOptions(passes=ordered, prefill_ms=BOUND_MS if prefill_ms is None else prefill_ms))


def set_stall_timeout(host: Host, seconds: float | None) -> None:
    """Set the time after which a request without a byte is aborted. Raises OptionError."""
    if seconds is not None:
        host.stall_after(require_stall_timeout(seconds))


async def open_model(host: DeviceHost, source: Source, make_tokenizer: MakeTokenizer) -> Opened:
    """Read the folder's small files, check them, call `on_found` with the facts about the model, then load the graph
    and the weights.
    """
    progress, on_found = source.options.get("progress") or no_progress, source.options.get("on_found")
    keep_weights = source.keeps_weights
    with during_load(host.now) as times, span("load the model", "load"):
        place = await place_of(host, source.path, keep_weights)
        folder = place.folder
        with phase("files"):
            found, files = await read_small_files(host, place, source, keep_weights, progress)
        config, options = source.config_of(found), source.tape_options(found.config)
        facts = facts_of(config, source.path if isinstance(source.path, HubRepository) else place.path)
        if on_found is not None:
            on_found(facts)
        keep_weights = keep_weights and not config.decoder.disable_file_mapped_weights
        given = given_graphs(source.options.get("graphs") or {}, config)
        graphs, ready = {**found.graphs, **given}, None if given else found.ready
        if config.vision is not None:
            from .graphs_beside import read_beside  # noqa: PLC0415  (for models that hear or see only)

            graphs |= await read_beside(host, folder, config, graphs, keep_weights)

        async def read_graph(name: str) -> bytes:
            file = config.graph_files[name]
            return graphs.get(name) or await host.read_graph(folder, file, keep_weights, no_progress)

        if config.processor is not None:
            from ..device.speech_encoder import with_weights  # noqa: PLC0415  (for models that hear only)

            name = VISION if config.encoder is None else ENCODER
            graphs[name] = await read_graph(name)
            config = with_weights(config, graphs[name])

        async def open_on(device: str, progress: Progress = no_progress) -> DeviceModel:
            opening = Opening(folder, config, options, progress, keep_weights, graphs, ready)
            loaded = await opened_in_memory(host, opening, device, source.options, read_graph)
            if config.processor is not None:
                from .graphs_beside import open_beside  # noqa: PLC0415  (for models that hear or see only)

                await open_beside(host, folder, config, read_graph, loaded, keep_weights)
            return loaded

        beside = TokenizerBeside(partial(make_tokenizer, host.tokenizer_backend, files), progress)
        times.at_begin("session", beside.begin)
        try:
            device, opening = source.device_for(config), partial(open_on, progress=beside.told)
            if source.is_configured and device == "webgpu":
                loaded = await opened_or_on_cpu(host, config.name, opening)
            else:
                loaded = await opening(device)
        finally:
            tokenizer = beside.made()
    if config.decoder.kv_cache_bits and loaded.device != "webgpu":
        asked, why = f"a key/value cache in int{config.decoder.kv_cache_bits}", "only WebGPU computes attention over it"
        fall_back(asked, why, "caches are of floats")
    config = shortened(config, loaded.memory.context_length)
    return Opened(folder, config, facts, loaded, files, times.phases, open_on, read_graph, tokenizer)


async def opened_in_memory(
    host: DeviceHost,
    opening: Opening,
    device: str,
    options: LoadOptions,
    read_graph: Callable[[str], Awaitable[bytes]],
) -> DeviceModel:
    """Open a model on a device. If the memory of a GPU is too small, and the caller did not choose their place, tables
    that only lookups of tokens read stay on disk, unless they are a small share of the weights.
    """
    try:
        return await host.open_model(opening, device)
    except OutOfMemoryError as error:
        chosen = options.get("embedding_tables") is not None or device in ("wasm", "cpu")
        if chosen or not await host.has_webgpu() or not large_tables(await read_graph(DECODER), opening.config):
            raise
        decoder = replace(opening.config.decoder, tables_on_disk=True)
        smaller = replace(opening, config=replace(opening.config, decoder=decoder))
        try:
            opened = await host.open_model(smaller, device)
        except (OptionError, OutOfMemoryError, StorageError):
            raise error from None
        fall_back("tables of embeddings in memory", str(error), "each run reads the rows of its tokens from disk")
        return opened


def large_tables(graph: bytes, config: GenaiConfig) -> bool:
    """Whether tables that only lookups of tokens read are at least 1 / LARGE of a graph's weights."""
    from ..graph import known_external_entries, looked_up_bytes, parse  # noqa: PLC0415  (protobuf)

    model = parse(graph, config.decoder.filename)
    weights = sum(entry.length for entry in known_external_entries(model))
    return LARGE * looked_up_bytes(model, config.decoder.inputs.input_ids) >= weights > 0


class TokenizerBeside:
    """Makes a model's tokenizer while its sessions are made or its weights load, whichever begins first. These rarely
    need this thread, and reading a vocabulary takes tenths of a second.
    """

    def __init__(self, make: Callable[[], Any], progress: Progress) -> None:
        self._make, self._progress = make, progress
        self._context = copy_context()
        """The context of the load, from which progress is reported."""
        self._making: asyncio.Task[Any] | None = None

    def told(self, what: str, done: int, total: int) -> None:
        """Report the progress of the load to the load's callback."""
        self._progress(what, done, total)
        if done:
            self.begin()

    def begin(self) -> None:
        """Begin to make the tokenizer once the running task waits."""
        if self._making is None:
            self._making = asyncio.get_event_loop().create_task(self._begin(), context=self._context)

    def made(self) -> Any:
        """The tokenizer. It is None if no weights were loaded, or after an error; a later request for the tokenizer
        raises that error.
        """
        if self._making is None or not self._making.done():
            return None
        with suppress(CapstanError, ImportError):
            return self._making.result()
        return None

    async def _begin(self) -> Any:
        with phase("tokenizer"):
            return self._make()


def given_graphs(files: Mapping[str, bytes], config: GenaiConfig) -> dict[str, bytes]:
    """The given graphs by name. Raises OptionError for a file that is not a graph."""
    names = {file: name for name, file in config.graph_files.items()}
    others = [file for file in files if file not in names]
    if others:
        raise OptionError(
            f"data was given for {', '.join(others)}; the model's graph is {', '.join(names)}, and other "
            "files are read from the folder"
        )
    return {names[file]: data for file, data in files.items()}


@dataclass(frozen=True)
class Configuration:
    """Holds the contents of a folder's small files, read without the graph. These are enough for a Tokenizer."""

    host: Host
    config: GenaiConfig
    tokenizer_files: dict[str, str]


def read_configuration(path: Any, overlay: Mapping[str, Any] | None = None) -> Configuration:
    """Read a folder's small files, blocking. Raises AsyncRequiredError if the host cannot block, and Model's errors."""
    host = current_host()

    async def read() -> Configuration:
        place = await place_of(host, path, True)
        found, files = await read_small_files(host, place, Source(path, {"overlay": overlay}), True, no_progress)
        return Configuration(host, found.config, files)

    return wait_here(host, read(), "read_configuration", "await Model.load(...)")


def shortened(config: GenaiConfig, context_length: int) -> GenaiConfig:
    """The configuration with sequences that end at `context_length`. Warns if the model's own context length is
    greater.
    """
    if context_length == config.context_length:
        return config
    fall_back(
        f"positions from {context_length} to the model's context_length of {config.context_length}",
        "there the model begins to rotate all positions by other factors (long rope), which Capstan does not support",
        f"sequences end at a max_length of {context_length}",
    )
    search = dict(config.search)
    if isinstance(search.get("max_length"), int):
        search["max_length"] = min(search["max_length"], context_length)
    return replace(config, context_length=context_length, search=search)


def utf_8(content: bytes, name: str) -> str:
    """The text of a file. Raises ConfigError if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: byte {error.start} is not UTF-8; copy the file again") from error


async def read_small_files(
    host: Host, place: Place, source: Source, keep: bool, progress: Progress
) -> tuple[FoundModel, dict[str, str]]:
    """The model and the tokenizer's files, requested together. Raises ConfigError, ModelFileError."""
    # Pyodide's loop immediately reports a failed task that is not awaited; gather takes its error.
    tokenizer = asyncio.gather(read_tokenizer(host, place))
    try:
        dtype, overlay = source.options.get("dtype"), source.options.get("overlay")
        wanted = source.options.get("hears")
        found = await find_model(host, place, source.device_for(), dtype, keep, progress, overlay, wanted)
        if source.of_draft and found.config.draft is not None:
            found = replace(found, config=found.config.draft)
        config = found.config
        speculation_of(configured_speculative(config.speculative, config.name), config.draft is not None)
        search_options(config).warn_ignored()
        if config.no_tokens:
            vocabulary = f"the vocabulary has {config.vocab_size} tokens"
            fall_back(f"{', '.join(config.no_tokens)} of {config.name}", vocabulary, "the model is run without")
        if unused := config.decoder.unused_options:
            fall_back(f"options of {config.name}", ", ".join(unused), "the model is run without them")
    except BaseException:
        # Their results and errors are ignored.
        tokenizer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        tokenizer.cancel()
        raise
    [contents] = await tokenizer
    if found.tokenizer is not None:
        return found, dict(found.tokenizer)
    files = with_tokenizer(place.folder, contents)
    name = config.processor
    if name is not None:
        files[name] = utf_8(await host.read(place.folder, name), place.folder + name)
        written = await host.read_optional(place.folder, CHAT_TEMPLATE) if config.vision is not None else None
        if written is not None and TEMPLATE_FILE not in files:
            template = parse_object(written, place.folder + CHAT_TEMPLATE).get("chat_template")
            files |= {TEMPLATE_FILE: template} if isinstance(template, str) else {}
        stated = await host.read_optional(place.folder, GENERATION_CONFIG)
        if stated is not None:
            files[GENERATION_CONFIG] = utf_8(stated, place.folder + GENERATION_CONFIG)
    return found, files


async def read_tokenizer(host: Host, place: Place) -> dict[str, bytes | None]:
    """The contents of a tokenizer's files by name, None for missing ones; a GGUF file contains its tokenizer. Raises
    ModelFileError.
    """
    if place.gguf is not None:
        return {}
    folder = place.folder
    listing = await host.listing(folder)
    names = [*TOKENIZER_FILES, *(name for name in listing or () if TEMPLATE.fullmatch(name))]
    found = dict(zip(names, await asyncio.gather(*(host.read_optional(folder, name) for name in names)), strict=True))
    if listing is None and found[TEMPLATE_FILE]:
        # In a folder that cannot be listed, only the usual name is tried.
        found[TOOL_USE] = await host.read_optional(folder, TOOL_USE)
    return found


def with_tokenizer(folder: str, contents: Mapping[str, bytes | None]) -> dict[str, str]:
    """The texts of the files that exist, by their names in the folder. Raises ModelFileError without a tokenizer.json,
    ConfigError for a file that is not text.
    """
    files = {name: utf_8(content, folder + name) for name, content in contents.items() if content is not None}
    if "tokenizer.json" not in files:
        raise ModelFileError(f"{folder}tokenizer.json is missing; copy the tokenizer's files into the model folder")
    return files


PAUSES = (0.0, 0.25, 0.5)
"""Seconds before each try, since the new device may be lost, too. The page waits for a GPU adapter
(web/src/wire/adapter.ts).
"""


async def opened_again(open_model: Callable[[], Awaitable[DeviceModel]], lost: Exception) -> DeviceModel:
    """Call `open_model` again until a device is found. Raises DeviceLostError if there is no device, and any other
    error of `open_model`.
    """
    last: Exception = lost
    for pause in PAUSES:
        await asyncio.sleep(pause)
        try:
            return await open_model()
        except (DeviceLostError, DeviceUnavailableError) as error:
            last = error
    raise DeviceLostError(
        f"{lost}; no other device was available ({last}): reload the page, or restart the browser; device='wasm' "
        "needs no GPU"
    ) from last
