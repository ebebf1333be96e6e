"""A model folder, loaded onto a device."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .config import GenaiConfig
from .device.base import Decoder, DeviceModel, Progress, TapeOptions
from .device.interface import DeviceInterface
from .device.model_memory import capacity_for, require_lengths
from .device.row_decoder import RowDecoder
from .errors import (
    AsyncRequiredError,
    ClosedError,
    ConfigError,
    GuidanceError,
    ModelFileError,
    OptionError,
    OutOfMemoryError,
)
from .fallback import fall_back
from .guidance import Encoder, Grammars, TokenBytes, vocabulary
from .host import Host, current_host, wait_here
from .leaving import Leaving, when_dropped
from .load_times import during_load, phase
from .memory import AlignmentRequirements, MemoryRequirements, Pools
from .model_folder import FoundModel, find_model, no_progress
from .prefix_cache import PrefixCache, checked_limit
from .retrying import require_stall_timeout
from .search import SearchOptions
from .tape import PASSES

if TYPE_CHECKING:
    from .device.lora import LoraWeights

__all__ = ["Model"]

CAPTURES = ("tape", "ort", "off")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class Model:
    """A decoder, ready to generate: a folder of onnxruntime-genai's model builder, or a repository in Transformers.js
    layout (config.json and onnx/model_DTYPE.onnx).

    `path` is the folder: a URL, a FileSystemDirectoryHandle or an array of File objects that the user picked, a
    HubRepository, or a directory on CPython. `dtype` is the repository's graph to take, as in Transformers.js: 'fp32',
    'fp16', 'q4', 'q4f16', 'q8', 'int8', 'uint8' or 'bnb4'; None takes one that suits the device. `device` is 'webgpu',
    'wasm', 'auto' (WebGPU on a hardware adapter, else wasm), on CPython 'reference', or 'cpu' for either's. `capture`
    is how decode steps run on WebGPU: 'tape', 'ort' (onnxruntime-web's own capture) or 'off' (eager); where that is not
    possible the next one down is used, and the generator's `capture_note` says why. `passes` names what is done to the
    recorded step, out of `capstan.tape.PASSES`; None does all that pays on the adapter. Weights are kept in the
    browser's storage (`capstan.WeightStore`) unless `disable_file_mapped_weights` is set. `progress(what, done, total)`
    is called with bytes: first with 'weights', 0 and how many they are in all, before any is read, then for each file.
    `overlay` is laid over genai_config.json: objects field by field, every other value in its place; of a repository
    only `search`. `graphs` gives the graph's file from memory, by the name that the configuration has for it.
    `stall_timeout` is after how many seconds without a byte a request for a file is given up, to be tried again; it is
    the page's, 30 until it is set.

    `prefix_cache` is how many bytes of the device the key/value rows of closed generators may take, for prompts that
    begin with the same tokens; 0 shares none, of open generators neither. See `model.prefixes`.

    `Model(path)` blocks, which in a page needs JavaScript Promise Integration; `await Model.load(path)` never does.

    A model that is dropped without being closed is freed, once its generators are.

    Raises ModelFileError (WeightsChangedError if a file changed while it was read), ConfigError, UnsupportedModelError,
    DeviceUnavailableError, OutOfMemoryError, OptionError.
    """

    def __init__(
        self,
        path: Any,
        *,
        device: str = "auto",
        dtype: str | None = None,
        capture: str = "tape",
        passes: Collection[str] | None = None,
        disable_file_mapped_weights: bool = False,
        progress: Progress | None = None,
        overlay: Mapping[str, Any] | None = None,
        graphs: Mapping[str, bytes] | None = None,
        stall_timeout: float | None = None,
        prefix_cache: int = 0,
    ) -> None:
        host = current_host()
        set_stall_timeout(host, stall_timeout)
        if not host.can_wait():
            raise AsyncRequiredError(f"Model({path!r}) would have to wait here; use `await Model.load({path!r})`")
        options, limit = tape_options(capture, passes), checked_limit(prefix_cache)
        keep = not disable_file_mapped_weights
        source = Source(path, device, dtype, overlay or {}, graphs or {})
        self._set(host, host.wait(open_model(host, source, options, progress or no_progress, keep)), limit)

    @classmethod
    async def load(
        cls,
        path: Any,
        *,
        device: str = "auto",
        dtype: str | None = None,
        capture: str = "tape",
        passes: Collection[str] | None = None,
        disable_file_mapped_weights: bool = False,
        progress: Progress | None = None,
        overlay: Mapping[str, Any] | None = None,
        graphs: Mapping[str, bytes] | None = None,
        stall_timeout: float | None = None,
        prefix_cache: int = 0,
    ) -> Model:
        """Load a model without blocking; see the class for the arguments and errors."""
        host = current_host()
        set_stall_timeout(host, stall_timeout)
        options, keep = tape_options(capture, passes), not disable_file_mapped_weights
        limit = checked_limit(prefix_cache)
        source = Source(path, device, dtype, overlay or {}, graphs or {})
        opened = await open_model(host, source, options, progress or no_progress, keep)
        model = cls.__new__(cls)
        model._set(host, opened, limit)
        return model

    def _set(self, host: Host, opened: Opened, prefix_limit: int) -> None:
        config = opened.config
        self.host = host
        self.folder = opened.folder
        self.config = config
        self.tokenizer_files = opened.files
        self.load_times = opened.times
        """The phases of the load: when each began and ended, in ms from the call. They overlap."""
        self._loaded: DeviceModel | None = opened.loaded
        self.leaving = Leaving()
        """Generators that were dropped."""
        self.prefixes = PrefixCache(prefix_limit)
        """Key/value rows that prompts with a common start share."""
        self._finalizer = when_dropped(self, host, partial(released, opened.loaded, self.prefixes))
        self._grammars: Grammars | None = None
        self._token_bytes: TokenBytes | None = None
        self._encoder: Encoder | None = None
        self.search = search_options(config)

    @property
    def type(self) -> str:
        """The model type of genai_config.json or config.json, as 'llama'."""
        return self.config.model_type

    @property
    def device_type(self) -> str:
        """'webgpu', 'wasm' or 'reference'."""
        return self._open().device

    @property
    def adapter(self) -> str:
        """The adapter's name."""
        return self._open().adapter

    async def decoder(self, max_length: int, pools: Pools | None = None) -> Decoder:
        """A decoder whose KV cache holds at least `max_length` positions, at most the context length."""
        return await self._open().decoder(capacity_for(max_length, self.config.context_length), pools)

    async def row_decoder(
        self, rows: int, max_length: int, pools: Pools | None = None, lora: LoraWeights | None = None
    ) -> RowDecoder:
        """The same for so many rows, with adapters. Raises OutOfMemoryError where they are more than there is memory
        for, kept rows of closed generators freed."""
        await self.leaving.settled()
        capacity = capacity_for(max_length, self.config.context_length)
        try:
            return await self._open().row_decoder(rows, capacity, pools, lora)
        except OutOfMemoryError:
            if not self.prefixes.clear():
                raise
        return await self._open().row_decoder(rows, capacity, pools, lora)

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        """What goes on from what a decoder of this model is, with adapters; see DeviceModel.switched."""
        return await self._open().switched(decoder, lora)

    async def load_adapter(self, data: Any, what: str) -> LoraWeights:
        """A LoRA adapter file on the device; `what` is what messages call it. See LoraGraph.load."""
        loaded = self._open()
        return await loaded.lora.load(loaded.memory.interface, data, what, self.folder)

    async def combine_adapters(self, layers: Sequence[LoraWeights], owner: str) -> LoraWeights:
        """Adapters laid over one another; see LoraGraph.combine."""
        loaded = self._open()
        return await loaded.lora.combine(loaded.memory.interface, layers, owner)

    async def grammars(self) -> Grammars:
        """What compiles grammars over the model's vocabulary, made once. Raises GuidanceError."""
        if self._grammars is None:
            self._grammars = await self.host.grammars(self._vocabulary(), self.config.eos_token_ids)
        return self._grammars

    def token_bytes(self) -> TokenBytes:
        """The bytes of its tokens, made once. Raises GuidanceError."""
        if self._token_bytes is None:
            self._token_bytes = TokenBytes(self._vocabulary(), self.config.eos_token_ids)
        return self._token_bytes

    def _vocabulary(self) -> list[str]:
        ends = self.config.eos_token_ids
        if not ends:
            raise GuidanceError("the model has no eos_token_id, so that no output could end; add it to its config")
        return vocabulary(self.tokenizer_files["tokenizer.json"], self.config.vocab_size, ends)

    def encoder(self) -> Encoder:
        """What turns text into tokens, made once."""
        if self._encoder is None:
            files = self.tokenizer_files
            config = files.get("tokenizer_config.json") or "{}"
            self._encoder = self.host.tokenizer_backend(files["tokenizer.json"], config)
        return self._encoder

    @property
    def device(self) -> DeviceInterface:
        """Where the model is: allocate there what its generators are to be given."""
        return self._open().memory.interface

    def query_memory_requirements(self, batch_size: int = 1, max_length: int | None = None) -> MemoryRequirements:
        """Bytes of weights, scratch, persistent and io memory that the model and `batch_size` sequences of `max_length`
        tokens (the context length unless given) take of the device, tensor by tensor.

        The KV cache is counted as it is allocated, for `max_length` rounded up to a multiple of 256. Scratch is what
        onnxruntime-web allocates: an estimate from the graph (`exact` is False), then what was measured at the device
        for a sequence of that capacity, once one was closed and a prompt had filled a whole prefill run. What the tapes
        of prompt runs take is left out: where there is no memory for one, the prompt is run without it.
        """
        length = self.config.context_length if max_length is None else max_length
        require_lengths(batch_size, length, self.config.context_length)
        return self._open().memory.requirements(batch_size, length)

    def alignment_requirements(self) -> AlignmentRequirements:
        """What buffers given to a generator must keep to, in bytes."""
        return self._open().memory.alignment()

    async def trim(self) -> None:
        """Free the KV caches and tapes that closed generators left for the next one, and what `prefixes` keeps."""
        self.prefixes.clear()
        await self._open().trim()

    def healthy(self) -> bool:
        """Whether the model is open and its device still works."""
        return self._loaded is not None and self._loaded.healthy()

    async def aclose(self) -> None:
        """Free the device; generators of this model fail from now on. Closing twice is harmless."""
        loaded, self._loaded = self._loaded, None
        self._finalizer.detach()
        if loaded is not None:
            # Nobody else can free it if this wait is cancelled.
            await asyncio.shield(asyncio.ensure_future(released(loaded, self.prefixes)))

    def close(self) -> None:
        """`aclose`, blocking."""
        if not self.host.can_wait():
            raise AsyncRequiredError("Model.close() would have to wait here; use `await model.aclose()`")
        self.host.wait(self.aclose())

    async def __aenter__(self) -> Model:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _open(self) -> DeviceModel:
        if self._loaded is None:
            raise ClosedError(f"the model {self.folder} was closed; load it again")
        return self._loaded


async def released(loaded: DeviceModel, prefixes: PrefixCache) -> None:
    """Free what a model holds."""
    prefixes.close()
    await loaded.close()


def search_options(config: GenaiConfig) -> SearchOptions:
    """What generators of the model start from. Raises OptionError."""
    return SearchOptions.from_config(
        config.search,
        eos_token_ids=config.eos_token_ids,
        pad_token_id=config.pad_token_id,
        context_length=config.context_length,
    )


def tape_options(capture: str, passes: Collection[str] | None) -> TapeOptions:
    """Checked options; OptionError with what there is."""
    if capture not in CAPTURES:
        raise OptionError(f"capture is {capture!r}; it must be one of {', '.join(map(repr, CAPTURES))}")
    if passes is None:
        return TapeOptions(capture)
    unknown = [name for name in passes if name not in PASSES]
    if isinstance(passes, str) or unknown:
        raise OptionError(f"passes is {passes!r}; it must be a collection of names out of {', '.join(PASSES)}, or None")
    return TapeOptions(capture, tuple(name for name in PASSES if name in passes))


@dataclass(frozen=True)
class Opened:
    """What was loaded out of a folder."""

    folder: str
    config: GenaiConfig
    loaded: DeviceModel
    files: dict[str, str]
    """The tokenizer's, by name."""
    times: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and what of it; see Model."""

    path: Any
    device: str = "auto"
    dtype: str | None = None
    overlay: Mapping[str, Any] = field(default_factory=dict)
    graphs: Mapping[str, bytes] = field(default_factory=dict)


def set_stall_timeout(host: Host, seconds: float | None) -> None:
    """Raises OptionError."""
    if seconds is not None:
        host.stall_after(require_stall_timeout(seconds))


async def open_model(
    host: Host, source: Source, options: TapeOptions, progress: Progress, keep_weights: bool = True
) -> Opened:
    """Read the folder's small files, check them, then load the graph and the weights."""
    with during_load(host.now) as times:
        folder = await host.adopt(source.path, keep_weights)
        with phase("files"):
            found, files = await read_small_files(host, folder, source, keep_weights, progress)
        config, device = found.config, source.device
        onnx = given_graph(source.graphs, config) or found.onnx
        loaded = await host.open_model(folder, config, device, options, progress, keep_weights, onnx)
    return Opened(folder, shortened(config, loaded.memory.context_length), loaded, files, times.phases)


def given_graph(graphs: Mapping[str, bytes], config: GenaiConfig) -> bytes | None:
    """The graph's file among those given. OptionError for any other."""
    others = [name for name in graphs if name != config.decoder.filename]
    if others:
        raise OptionError(
            f"data was given for {', '.join(others)}; the model's graph is {config.decoder.filename}, and other "
            "files are read from the folder"
        )
    return graphs.get(config.decoder.filename)


@dataclass(frozen=True)
class Configuration:
    """What a folder says before its graph is loaded: enough for a Tokenizer."""

    host: Host
    config: GenaiConfig
    tokenizer_files: dict[str, str]


def read_configuration(path: Any, overlay: Mapping[str, Any] | None = None) -> Configuration:
    """A folder's small files, blocking. Raises AsyncRequiredError where it cannot wait, else what Model raises."""
    host = current_host()

    async def read() -> Configuration:
        folder = await host.adopt(path, True)
        found, files = await read_small_files(host, folder, Source(path, overlay=overlay or {}), True, no_progress)
        return Configuration(host, found.config, files)

    return wait_here(host, read(), "read_configuration", "await Model.load(...)")


def shortened(config: GenaiConfig, context_length: int) -> GenaiConfig:
    """The configuration of a model whose sequences end at `context_length`; a warning if it says a greater one."""
    if context_length == config.context_length:
        return config
    fall_back(
        f"positions from {context_length} to the model's context_length of {config.context_length}",
        "from there on the model rotates all positions by other factors (long rope), which Capstan does not",
        f"sequences end at a max_length of {context_length}",
    )
    search = dict(config.search)
    if isinstance(search.get("max_length"), int):
        search["max_length"] = min(search["max_length"], context_length)
    return replace(config, context_length=context_length, search=search)


def utf_8(content: bytes, name: str) -> str:
    """The text of a file. Raises ConfigError where it is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: byte {error.start} is not UTF-8; copy the file again") from error


async def read_small_files(
    host: Host, folder: str, source: Source, keep: bool, progress: Progress
) -> tuple[FoundModel, dict[str, str]]:
    """The model found and the tokenizer's files, asked for at once. Raises ConfigError, ModelFileError."""
    tokenizer = asyncio.gather(*(host.read_optional(folder, name) for name in TOKENIZER_FILES))
    try:
        found = await find_model(host, folder, source.device, source.dtype, keep, progress, source.overlay)
        config = found.config
        search_options(config).tell_ignored()
        if config.no_tokens:
            vocabulary = f"the vocabulary has {config.vocab_size} tokens"
            fall_back(f"{', '.join(config.no_tokens)} of {config.name}", vocabulary, "the model is run without")
        if config.decoder.unknown_options:
            what = ", ".join(config.decoder.unknown_options)
            fall_back(f"options of {config.name}", f"{what} unknown to Capstan", "the model is run without them")
    except BaseException:
        # How they end is nobody's concern any more.
        tokenizer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        tokenizer.cancel()
        raise
    contents = dict(zip(TOKENIZER_FILES, await tokenizer, strict=True))
    files = {name: utf_8(content, folder + name) for name, content in contents.items() if content is not None}
    if "tokenizer.json" not in files:
        raise ModelFileError(f"{folder}tokenizer.json is missing; copy the tokenizer's files into the model folder")
    return found, files
