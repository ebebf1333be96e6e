"""Loads a model folder onto a device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from .device.device_host import DeviceHost, current_device_host
from .device.device_interface import DeviceInterface
from .device.model_interface import DeviceModel
from .device.model_memory import capacity_for, require_lengths
from .device.prefix_cache import PrefixCache, checked_limit
from .device.row_interface import RowDecoder
from .errors import (
    AsyncRequiredError,
    CapstanError,
    ClosedError,
    ModelFileError,
    OutOfMemoryError,
    UnsupportedModelError,
)
from .fallback import fall_back
from .guidance import ModelVocabulary
from .host.leaving import Leaving, when_dropped
from .loading.draft_model import draft_source, head_source, require_draft_model, without_head
from .loading.load_options import LoadOptions
from .loading.opening import Opened, Source, open_model, opened_again, search_options, set_stall_timeout, source_of
from .memory import AlignmentRequirements, DeviceBuffer, DeviceSpan, MemoryRequirements, Pools
from .model_files.genai_config import DECODER
from .stages.native_speculation import configured_speculative
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .device.lora_weights import LoraWeights
    from .device.model_origin import ModelOrigin
    from .device.picture_encoder import PictureEncoder
    from .device.speech_encoder import SpeechEncoder
    from .graph import GraphDescription
    from .onnxruntime.host_array import HostArray
    from .onnxruntime.not_finite import NotFinite

__all__ = ["Model"]


class Model:
    """A decoder, ready to generate: a folder of onnxruntime-genai's model builder, or a repository in Transformers.js
    layout (config.json and onnx/model_DTYPE.onnx).

    `path` is the folder: a URL, a FileSystemDirectoryHandle or an array of File objects that the user picked, a
    HubRepository, or a directory on CPython. The options are those of capstan.loading.load_options.LoadOptions.
    `device` may also be 'reference' on CPython, 'cpu' in a page and on CPython, or 'configured': the device of the
    providers in genai_config.json, as in onnxruntime-genai ('cpu' without any, and in place of a missing GPU).
    `capture` is 'tape', 'ort' (onnxruntime-web's own capture) or 'off' (eager); if a device cannot do that, the next
    one in this order is used, and the generator's `capture_note` has the reason. A configuration with
    "enableGraphCapture": "1" requests 'tape', with a FallbackWarning if nothing can be captured. Weights are kept in
    `capstan.WeightStore`, and rows for other prompts in `model.prefixes`.

    `Model(path)` blocks, which in a page needs JavaScript Promise Integration; `await Model.load(path)` never blocks.

    A model that is dropped without `close` is freed after the last of its generators.

    Raises ModelFileError (WeightsChangedError if a file changed while it was read), ConfigError, UnsupportedModelError,
    DeviceUnavailableError, OutOfMemoryError, OptionError.
    """

    def __init__(self, path: Any, **options: Unpack[LoadOptions]) -> None:
        host = current_device_host()
        set_stall_timeout(host, options.get("stall_timeout"))
        if not host.can_wait():
            raise AsyncRequiredError(f"Model({path!r}) would have to wait here; use `await Model.load({path!r})`")
        source, limit = source_of(path, options), checked_limit(options.get("prefix_cache", 0))
        self._set(host, host.wait(open_model(host, source, Tokenizer.of_folder)), limit)
        host.wait(self._take_draft_model(path, options))

    @classmethod
    async def load(cls, path: Any, **options: Unpack[LoadOptions]) -> Model:
        """Load a model without blocking; see the class for the arguments and errors."""
        host = current_device_host()
        set_stall_timeout(host, options.get("stall_timeout"))
        model = await cls._opened(host, source_of(path, options), checked_limit(options.get("prefix_cache", 0)))
        await model._take_draft_model(path, options)
        return model

    @classmethod
    async def _opened(cls, host: DeviceHost, source: Source, prefix_limit: int) -> Model:
        """A model without its draft model."""
        model = cls.__new__(cls)
        model._set(host, await open_model(host, source, Tokenizer.of_folder), prefix_limit)
        return model

    def _set(self, host: DeviceHost, opened: Opened, prefix_limit: int) -> None:
        config = opened.config
        self.host = host
        self.folder = opened.folder
        self.config = config
        self.facts = opened.facts
        """The model's name, size and licence, and the search options that its makers recommend."""
        self.tokenizer_files = opened.files
        if opened.tokenizer is not None:
            opened.tokenizer.keep_for(self)
        self.load_times = opened.times
        """The phases of the load: start and end of each, in ms from the call. They overlap."""
        self._loaded: DeviceModel | None = opened.loaded
        rope = opened.loaded.memory.description.rope
        self.original_length = 0 if rope is None else rope.original
        """Tokens of the longest sequence that is rotated by the short factors of a long rope; 0 without such a rope."""
        self.leaving = Leaving()
        """Releases of dropped generators."""
        self.prefixes = PrefixCache(prefix_limit)
        """Key/value rows that prompts with a common start share."""
        self._finalizer = when_dropped(self, host, partial(released, opened.loaded, self.prefixes))
        self._open_again = opened.again
        self._read_graph = opened.read_graph
        self._recovering = asyncio.Lock()
        self.recoveries = 0
        """The number of times that the model was opened on another device after a loss."""
        self.on_recovery: Callable[[str, float], None] | None = None
        """Called after each recovery, with the reason and its milliseconds."""
        self.vocabulary = ModelVocabulary(
            opened.files, config.vocab_size, config.eos_token_ids, host.token_walks, host.tokenizer_backend
        )
        """The tokens, for grammars."""
        self.search = search_options(config)
        self.speculative = configured_speculative(config.speculative, config.name)
        """The options of speculation by onnxruntime-genai's names, from the model's files."""
        self.draft_model: Model | None = None
        """The small model that drafts tokens for this one, or this model's multi-token-prediction head."""

    async def _take_draft_model(self, path: Any, options: LoadOptions) -> None:
        """Load the caller's draft model or that of the folder, or else the head; on failure this model is closed.
        A head that cannot be loaded is left out, with a warning.
        """
        given = options.get("draft_model") is not None
        if given:
            self.speculative |= {"ngram_size": 0.0, "ngram_chained_lookup": False}
        try:
            if given or self.config.draft is not None:
                source = draft_source(path, options, self.device_type)
                self.draft_model = await Model._opened(self.host, source, 0)
                require_draft_model(self, self.draft_model, self.draft_model.graph.states)
            elif self.config.head is not None:
                await self._take_head(head_source(path, options, self.device_type))
        except BaseException:
            await self.aclose()
            raise

    async def _take_head(self, source: Source) -> None:
        try:
            opened = await open_model(self.host, source, no_tokenizer)
        except (ModelFileError, UnsupportedModelError, OutOfMemoryError) as error:
            without_head(self.folder, str(error))
            return
        self.draft_model = Model.__new__(Model)
        self.draft_model._set(self.host, opened, 0)

    @property
    def has_draft_model(self) -> bool:
        """Whether a model drafts tokens for this one that is not its multi-token-prediction head."""
        return self.draft_model is not None and not self.draft_model.is_head

    @property
    def is_head(self) -> bool:
        """Whether this is the multi-token-prediction head of another model."""
        return self.graph.reads_hidden is not None

    @property
    def type(self) -> str:
        """The model type of genai_config.json or config.json, such as 'llama'."""
        return self.config.model_type

    @property
    def device_type(self) -> str:
        """'webgpu', 'wasm' or 'reference'."""
        return self._open().device

    @property
    def adapter(self) -> str:
        """The GPU adapter's name."""
        return self._open().adapter

    async def decoder(self, max_length: int) -> RowDecoder:
        """A decoder of one row, whose KV cache holds at least `max_length` positions, at most the context length."""
        return await self._open().decoder(capacity_for(max_length, self.config.context_length))

    async def row_decoder(
        self,
        rows: int,
        max_length: int,
        pools: Pools | None = None,
        lora: LoraWeights | None = None,
        unrecorded: bool = False,
    ) -> RowDecoder:
        """A decoder of `rows` rows, with adapters; see DeviceModel.row_decoder. Raises OutOfMemoryError if the memory
        is too small even after kept rows of closed generators are freed.
        """
        await self.leaving.settled()
        capacity = capacity_for(max_length, self.config.context_length)
        try:
            return await self._open().row_decoder(rows, capacity, pools, lora, unrecorded)
        except OutOfMemoryError:
            if not self.prefixes.clear():
                raise
        return await self._open().row_decoder(rows, capacity, pools, lora, unrecorded)

    async def replace_scratch(
        self, decoder: RowDecoder, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None
    ) -> None:
        """Give the tapes of a decoder of this model other scratch; see DeviceModel.replace_scratch."""
        await self._open().replace_scratch(decoder, scratch)

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        """A decoder that continues from the state of `decoder`, another one of this model, with LoRA adapters; see
        DeviceModel.switched.
        """
        return await self._open().switched(decoder, lora)

    @property
    def speech_encoder(self) -> SpeechEncoder | None:
        """The encoder of sound, on the model's device; None for a text model."""
        return None if self.config.encoder is None else cast("SpeechEncoder", self._open().encoder)

    @property
    def picture_encoder(self) -> PictureEncoder | None:
        """The vision graph, on the model's device; None for a model without one."""
        return None if self.config.vision is None else cast("PictureEncoder", self._open().encoder)

    @property
    def origin(self) -> ModelOrigin:
        """The files from which the model was loaded."""
        return self._open().origin

    @property
    def graph(self) -> GraphDescription:
        """The description of the decoder's graph, as the device runs it."""
        return self._open().memory.description

    async def load_adapter(self, data: Any, what: str) -> LoraWeights:
        """Load a LoRA adapter file to the device; messages call it `what`. See LoraGraph.load."""
        loaded = self._open()
        return await loaded.lora.load(loaded.memory.interface, data, what, self.folder)

    async def combine_adapters(self, layers: Sequence[LoraWeights], owner: str) -> LoraWeights:
        """Merge adapters into one; see LoraGraph.combine."""
        loaded = self._open()
        return await loaded.lora.combine(loaded.memory.interface, layers, owner)

    @property
    def device(self) -> DeviceInterface:
        """The model's device, on which `pools` for its generators are allocated."""
        return self._open().memory.interface

    def query_memory_requirements(self, batch_size: int = 1, max_length: int | None = None) -> MemoryRequirements:
        """Bytes of weights, scratch, persistent and io memory that the model and `batch_size` sequences of `max_length`
        tokens (the context length unless given) take on the device, tensor by tensor.

        The KV cache is counted as it is allocated, for `max_length` rounded up to a multiple of 256. Scratch is memory
        that onnxruntime-web allocates: first an estimate from the graph (`exact` is False); then, once a sequence of
        that capacity was closed and a prompt had filled a whole prefill run, the measured size. Tapes of prompt runs
        are not included: if memory is too short for a tape, the prompt runs without one. `draft` has the memory of the
        draft model or the multi-token-prediction head.
        """
        length = self.config.context_length if max_length is None else max_length
        require_lengths(batch_size, length, self.config.context_length)
        memory, draft = self._open().memory, self.draft_model
        if draft is not None:
            memory = replace(memory, draft=draft._open().memory)
        return memory.requirements(batch_size, length)

    def alignment_requirements(self) -> AlignmentRequirements:
        """The alignments, in bytes, that buffers given to a generator need."""
        return self._open().memory.alignment()

    async def trim(self) -> None:
        """Free the KV caches and tapes that closed generators left for the next one, and the copies in `prefixes`."""
        self.prefixes.clear()
        await self._open().trim()
        if self.draft_model is not None:
            await self.draft_model.trim()

    async def settled_async(self) -> None:
        """Wait for the work that the model does while the GPU is unused, such as tapes of prompts. Measurements call
        this method, so that the work does not disturb them.
        """
        await self._open().settled()
        if self.draft_model is not None:
            await self.draft_model.settled_async()

    async def find_not_finite(self, ids: Sequence[int]) -> NotFinite | None:
        """Find the first node that makes NaN or infinity when the model runs on a prompt, with its layer and its inputs
        that are not finite. None if all values are finite.

        Use this for a model whose logits are all NaN (LogitsError). Its graph runs again on the same device, layer by
        layer and only on onnxruntime, and every node's output is read back. That takes the memory of one more layer,
        and much longer than a prompt. LoRA adapters are not applied. Raises PromptError, and the errors of
        `capstan.onnxruntime.InferenceSession`.
        """
        from .onnxruntime.not_finite import find_not_finite  # noqa: PLC0415  (in the extra `reference`)

        device = self._open().device
        return await find_not_finite(self.host, self.folder, self.config, await self._read_graph(DECODER), device, ids)

    async def computed_output(self, ids: Sequence[int], name: str) -> HostArray:
        """An output of the graph besides logits and caches, such as its hidden states, after a run over these tokens.
        The graph runs as in `find_not_finite`, which is slow. Raises UnsupportedModelError if no node makes it.
        """
        from .onnxruntime.layered_run import computed_output  # noqa: PLC0415  (in the extra `reference`)

        onnx, device = await self._read_graph(DECODER), self._open().device
        return await computed_output(self.host, self.folder, self.config, onnx, device, ids, name)

    def healthy(self) -> bool:
        """Whether the model is open and its device still works."""
        return self._loaded is not None and self._loaded.healthy()

    async def recover(self, opening: int, lost: Exception) -> None:
        """Open the model on another device, if `recoveries` still equals `opening`; generators call this themselves.
        Raises DeviceLostError if there is no other device.
        """
        # It continues if this wait is cancelled.
        opened = asyncio.ensure_future(self._recover(opening, lost))
        opened.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(opened)

    async def _recover(self, opening: int, lost: Exception) -> None:
        async with self._recovering:
            old, begun = self._open(), self.host.now()
            if opening != self.recoveries:
                return
            loaded = await opened_again(partial(self._open_again, old.device), lost)
            if self._loaded is None:
                await closed(loaded)
                raise ClosedError(f"the model {self.folder} was closed; load it again")
            self._loaded = loaded
            self.recoveries += 1
            self._finalizer.detach()
            self._finalizer = when_dropped(self, self.host, partial(released, loaded, self.prefixes))
            self.prefixes.lost()
            fall_back(
                "the device", str(lost), "the model was opened on another device, and sequences are computed again"
            )
            self.host.begin(let_go(old))
            if self.on_recovery is not None:
                self.on_recovery(str(lost), self.host.now() - begun)

    async def aclose(self) -> None:
        """Free the device; generators of this model fail from now on. Closing twice is harmless."""
        loaded, self._loaded = self._loaded, None
        self._finalizer.detach()
        if self.draft_model is not None:
            await self.draft_model.aclose()
        if loaded is not None:
            # If this wait is cancelled, no other caller can free the device.
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


def no_tokenizer(backend: object, files: object) -> None:
    """Make no tokenizer for a head: its model has one."""


async def let_go(lost: DeviceModel) -> None:
    """Close a model whose device is lost."""
    with suppress(CapstanError):
        await closed(lost)


async def released(loaded: DeviceModel, prefixes: PrefixCache) -> None:
    """Free a model's resources."""
    prefixes.close()
    await closed(loaded)


async def closed(loaded: DeviceModel) -> None:
    """Close a model, and the encoder beside it."""
    try:
        if loaded.encoder is not None:
            await loaded.encoder.close()
    finally:
        await loaded.close()
