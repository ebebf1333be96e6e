"""Generates token sequences, with an interface like that of onnxruntime-genai's Generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..adapters import Adapters
from ..device.row_interface import DecoderRow, RowDecoder
from ..errors import OptionError, UnsupportedModelError
from ..fallback import fall_back
from ..host import wait_here
from ..host.leaving import when_dropped
from ..memory import DeviceBuffer, DeviceSpan, Pools
from ..stages import integer
from .beam_policy import BeamPolicy
from .draft_policy import DraftPolicy
from .generated_rows import GeneratedRows
from .generator_params import GeneratorParams
from .grammar_policy import GrammarPolicy
from .plain_policy import PlainPolicy
from .processor_policy import ProcessorPolicy
from .prompt import checked_prompts
from .row_loop import RowLoop
from .saved_state import identity, require_same, restore_state, save_state
from .speculation_policy import SpeculationPolicy
from .state_format import KeptRows, RowSink, SavedState
from .token_scores import Score, score_tokens

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..device.speech_encoder import Features
    from ..model import Model

__all__ = ["Generator"]

T = TypeVar("T")


class Generator(GeneratedRows):
    """Sequences of a model, in the shape of onnxruntime-genai's Generator: one, or the rows of a batch.

    `append_tokens`, `rewind_to`, `get_sequence` and `is_done` never wait. `generate_next_token` waits for the GPU if no
    token is ready, which in a page needs JavaScript Promise Integration; `generate_next_token_async` and `async for
    token in generator` never block. While one token is read the GPU computes the following ones (run-ahead);
    `append_tokens`, `rewind_to`, `set_logits` and `close` discard them.

    As in onnxruntime-genai, an end-of-sequence token is returned but does not become part of the sequence: appended
    tokens follow the token before it.

    `pools` has buffers of the caller on `model.device` for the KV cache, sampler state, ids and logits; they are
    checked when the first token is prepared.

    If the device is lost, for example with the browser's GPU process, the generator opens the model on another device
    and computes the sequence again, with a FallbackWarning; its tokens are the same as without the loss.
    `GeneratorParams(recoveries=...)` limits the number of recoveries. With `pools` or LoRA adapters it raises
    DeviceLostError instead.

    Use it as a context manager, or `close()` it: its KV cache then serves the next generator. A generator that is
    dropped without being closed returns its KV cache, too.
    """

    def __init__(self, model: Model, params: GeneratorParams | None = None, *, pools: Pools | None = None) -> None:
        params = params or GeneratorParams(model)
        loop, leaving = RowLoop(model, params, pools), model.leaving
        super().__init__(loop, policy_of(params)(loop, params))
        self._model = model
        self._options = params.search

        def free() -> Coroutine[Any, Any, None] | None:
            if loop.closed:
                return None
            loop.closed = True
            # Sequences have copies of their LoRA adapters, so adapters may be unloaded immediately, as in the native
            # package.
            loop.adapters.release()
            return leaving.give_back(loop.end())

        when_dropped(self, model.host, free)
        self._turn = asyncio.Lock()
        """Serialises access: concurrent users would overwrite the decoder's buffers."""
        self._warm = False
        """Whether the kernels of long prompts were compiled before the first prompt."""

    def hear(self, sounds: Sequence[Features]) -> None:
        """Have the tokens follow sounds, one for each prompt of a batch, in a model with an encoder. Called before the
        first tokens, and again after `rewind_to(0)`. `capstan.genai.MultiModalProcessor` makes sounds from files.

        Raises OptionError for another number of sounds, and after tokens; UnsupportedModelError if the model reads only
        text.
        """
        if self._model.speech_encoder is None:
            raise UnsupportedModelError(f"a model of type {self._model.type!r} takes no sounds, only tokens")
        if len(sounds) != self._options.batch_size:
            raise OptionError(
                f"{len(sounds)} sounds were given; batch_size is {self._options.batch_size}: give one for each sequence"
            )
        loop = self._loop
        loop.require_open()
        if loop.length:
            raise OptionError(f"the sequence has {loop.length} tokens; sounds come before tokens: rewind_to(0) first")
        loop.sense(sounds)

    def see(self, pictures: Sequence[Features]) -> None:
        """Set the pictures of the sequence; its placeholders stand for them in order. Called before its tokens, and
        again with all pictures before tokens with further ones are appended. Cached rows are kept up to the first
        picture that changed. `capstan.genai.MultiModalProcessor` makes pictures and tokens from files.

        Raises OptionError for a batch; UnsupportedModelError if the model reads only text.
        """
        if self._model.picture_encoder is None:
            raise UnsupportedModelError(f"a model of type {self._model.type!r} takes no pictures; give it only text")
        if self._options.batch_size != 1:
            raise OptionError(
                f"batch_size is {self._options.batch_size}; pictures need a batch of one prompt: set it to 1"
            )
        self._loop.require_open()
        self._loop.sense(pictures)

    def giver(self, index: int = 0) -> Callable[[DecoderRow], Awaitable[None]]:
        """The function that gives the sound or the pictures of a row to a row of another decoder."""
        loop = self._loop
        return partial(loop.senses.give_to, self._model, index * self._options.batch_size // len(loop.rows))

    def append_tokens(self, tokens: Iterable[Any]) -> None:
        """Add tokens (ids of the vocabulary) to the sequence; the next request for a token runs the model on them.

        A batch is a list of rows, an array [batch_size, tokens], or one list with all rows one after another. Its rows
        are equally long: shorter prompts end in `pad_token_id` (`tokenizer.encode_batch(texts, pad_token_id)`), on
        which the model does not run, as in onnxruntime-genai. Several rows take tokens once, and again after
        `rewind_to(0)`.

        Raises PromptError for no tokens, an id outside the vocabulary, more than max_length allows, or rows of
        another number or of different lengths.
        """
        loop = self._loop
        loop.require_open()
        search = self._options
        prompts = checked_prompts(
            tokens, search.batch_size, self._model.config, loop.length, self.max_length, search.pad_token_id
        )
        if len(loop.rows) > 1 and loop.length:
            raise OptionError(
                f"append_tokens: a generator of {len(loop.rows)} rows takes tokens only once; rewind_to(0) and append "
                "whole prompts, or make a generator for each sequence"
            )
        loop.append(prompts)

    def rewind_to(self, new_length: int) -> None:
        """Cut the sequence to its first `new_length` tokens; generation continues from there.

        The KV cache before that point is kept. Raises OptionError outside 0 to the present length, and for several rows
        at any length but 0.
        """
        loop = self._loop
        loop.require_open()
        if not 0 <= new_length <= loop.length:
            raise OptionError(f"rewind_to({new_length}): the sequence has {loop.length} tokens")
        if new_length and len(loop.rows) > 1:
            raise OptionError(
                f"rewind_to({new_length}): a generator of {len(loop.rows)} rows rewinds only to 0; make a generator "
                "for each sequence"
            )
        loop.rewind(new_length)

    def set_active_adapter(self, adapters: Adapters, name: str) -> None:
        """Run the model with a LoRA adapter from here on: on the tokens that it has not seen, except those that were
        appended before. The KV cache keeps its entries. A second adapter adds to the first; if both have a tensor for
        the same input, the later one is used. The adapter cannot be unloaded until the generator is closed.

        Raises OptionError for an unknown name, an adapter of another model or of a different Adapters object than the
        first adapter's, and after beams have begun.
        """
        loop = self._loop
        loop.require_open()
        if adapters.model is not self._model:
            raise OptionError(
                f"adapter {name!r} was loaded for another model, {adapters.model.folder}; make an Adapters of this one"
            )
        if self._options.num_beams > 1 and loop.length:
            raise OptionError(f"adapter {name!r}: beams have begun; set it before tokens are appended")
        loop.set_adapter(adapters, name)

    async def prepare_async(self, record: bool | None = None) -> None:
        """Prepare the first tokens: allocate the KV caches, record and check the tape and, while there is no prompt
        yet, compile the kernels of long prompts. Optional; a generator that reuses the KV cache of a closed one is
        prepared already.

        `record=False` only allocates, so that a first token comes sooner; the recording comes after it. `record=True`
        always records. With None the step is recorded unless that pays only for long answers, as with a large model on
        a software adapter, where the recording comes after some tokens (`capture_note`).
        """
        async with self._turn:
            self._loop.require_open()
            await self._loop.surviving(partial(self._prepared, record))

    async def _prepared(self, record: bool | None) -> None:
        loop = self._loop
        decoder = await loop.ready_decoder(unrecorded=record is not True)
        after = decoder.records_after
        if after is not None and (record or (record is None and after <= 1)):
            await loop.record()
        if record is not False and not self._warm and not loop.length:
            self._warm = True
            await decoder.warm_up()

    def prepare(self, record: bool | None = None) -> None:
        """`prepare_async`, blocking."""
        self._wait(self.prepare_async(record), "prepare", "await prepare_async()")

    async def generate_next_token_async(self) -> int:
        """Generate one token for each row and return the first row's id; `get_next_tokens` has all of them. Raises
        PromptError without tokens, OptionError when done."""
        loop = self._loop
        loop.require_more()
        loop.begin()
        while not self._policy.ready:
            async with self._turn:
                if not self._policy.ready:
                    loop.require_more()
                    await loop.surviving(self._policy.advance)
        self._last = loop.take()
        return self._last[0]

    def generate_next_token(self) -> None:
        """Generate one token for each row; read them with get_next_tokens. Raises AsyncRequiredError where it would
        have to wait.
        """
        if self._policy.ready and not self._loop.closed:
            self._last = self._loop.take()
            return
        self._wait(self.generate_next_token_async(), "generate_next_token", "await generate_next_token_async()")

    async def __aiter__(self) -> AsyncIterator[int]:
        while not self.is_done():
            yield await self.generate_next_token_async()

    async def get_logits_async(self) -> memoryview[float]:
        """The logits from which the next token will be picked: float32 [vocab], for several rows [rows, vocab]. Tokens
        computed ahead are discarded.
        """
        async with self._turn:
            return await self._loop.surviving(self._loop.logits)

    def get_logits(self) -> memoryview[float]:
        """`get_logits_async`, blocking."""
        return self._wait(self.get_logits_async(), "get_logits", "await get_logits_async()")

    async def log_probabilities_async(self, count: int, also: Sequence[int] = ()) -> dict[int, float]:
        """The `count` most probable next tokens, the most probable first, then those of `also` that are not among them,
        each with the logarithm of its probability: a softmax of the model's own logits, before the search options.

        Tokens computed ahead are discarded. Raises OptionError for several rows, a count or an id out of range.
        """
        vocab = self._model.config.vocab_size
        integer("count", count, 1, vocab)
        for token in also:
            integer("also", token, 0, vocab - 1)
        if len(self._loop.rows) > 1:
            raise OptionError(f"this generator has {len(self._loop.rows)} rows; use a generator with batch_size 1")
        async with self._turn:
            return await self._loop.surviving(partial(self._log_probabilities, count, also))

    async def score_async(self, tokens: Iterable[int]) -> list[Score]:
        """Append `tokens` to the sequence and return the probability of each after all tokens before it. The model runs
        on them as on a prompt. Search options, grammars and processors have no effect; tokens computed ahead are
        discarded. After `rewind_to` another continuation is scored without running the context again.

        Raises OptionError for an empty sequence, several rows, beams, an adapter that was set after tokens, and a
        sequence that changes meanwhile; LogitsError if no logit is finite; otherwise the errors of `append_tokens`. An
        error leaves the sequence unchanged.
        """
        async with self._turn:
            return await score_tokens(self._loop, self._model.config, tokens)

    def score(self, tokens: Iterable[int]) -> list[Score]:
        """`score_async`, blocking."""
        return self._wait(self.score_async(tokens), "score", "await score_async(tokens)")

    def watch_log_probabilities(self, count: int | None) -> None:
        """From the next token on, `get_log_probabilities` returns those of the `count` (0 or more) most probable tokens
        and of the picked one; None stops this. The ids stay the same, but nothing runs ahead: each token waits for its
        logits.

        Drafts of a draft model or a head stop meanwhile, with a warning. Raises OptionError for a count out of range,
        for beams, and with other speculation.
        """
        loop = self._loop
        loop.require_open()
        if count is not None:
            integer("count", count, 0, self._model.config.vocab_size)
            if isinstance(self._policy, DraftPolicy):
                fall_back(
                    "speculation", "log probabilities wait for the logits of each token", "each step picks one token"
                )
            elif isinstance(self._policy, BeamPolicy | SpeculationPolicy):
                what = "num_beams" if isinstance(self._policy, BeamPolicy) else "speculation"
                raise OptionError(
                    f"log probabilities of each token are not available with {what}: leave one of the two out"
                )
        self._policy.watch(count)

    async def _log_probabilities(self, count: int, also: Sequence[int]) -> dict[int, float]:
        loop = self._loop
        await self._policy.settle()
        [found] = await loop.open_decoder().shortlists(count, [0])
        norm = found.best[0][0] + found.total
        known = {token: logit - norm for logit, token in found.best}
        rest = [token for token in also if token not in known]
        if rest:
            logits = await loop.open_decoder().row(0).logits()
            known |= {token: logits[token] - norm for token in rest}
        return known

    async def set_logits_async(self, values: Buffer) -> None:
        """Replace the logits from which the next token is picked: float32 [vocab], for several rows [rows, vocab].
        OptionError for another size or type.
        """
        view = memoryview(values)
        needed = self._model.config.vocab_size * len(self._loop.rows)
        if view.format != "f" or view.nbytes != 4 * needed:
            raise OptionError(
                f"the logits have format {view.format!r} and {view.nbytes} bytes; give {needed} float32 numbers"
            )
        async with self._turn:
            await self._loop.surviving(partial(self._loop.set_logits, view.cast("B").cast("f")))

    def set_logits(self, values: Buffer) -> None:
        """`set_logits_async`, blocking."""
        self._wait(self.set_logits_async(values), "set_logits", "await set_logits_async(values)")

    async def save_state_async(self, bits: int = 0) -> bytes:
        """The tokens with their rows of the KV cache, from which `restore_state` of another generator continues, also
        in a later page or process: about as many bytes as the cache has for these tokens. It has no search options, and
        of pictures only digests: give them to `see` again after restoring.

        With `bits` 8 or 4 the rows take a half or a third of float16's bytes, and are widened when they are restored:
        later tokens may differ (docs/saved_conversations.md).

        Raises OptionError for several rows, if an adapter was set after tokens, and for bits that the caches do not
        allow, UnsupportedModelError for models that hear or that have recurrent states, PromptError for an empty
        sequence, StorageError for weights that a later load cannot recognise.
        """
        kept = KeptRows()
        return SavedState.as_bytes(await self.save_rows(kept, bits), kept.shards)

    def save_state(self, bits: int = 0) -> bytes:
        """`save_state_async`, blocking."""
        return self._wait(self.save_state_async(bits), "save_state", "await save_state_async()")

    async def restore_state_async(self, state: Buffer) -> None:
        """Continue a saved sequence: the model runs only on its last token again, for the logits after it. The sequence
        must be empty, and stays empty after an error.

        Raises StorageError for bytes that are damaged or no state, OptionError for a state of another model, adapter,
        type of cache or version and for a sequence with tokens, PromptError if max_length is too small, and otherwise
        the errors of `save_state`.
        """
        await self.restore_rows(SavedState.of_bytes(state))

    def restore_state(self, state: Buffer) -> None:
        """`restore_state_async`, blocking."""
        self._wait(self.restore_state_async(state), "restore_state", "await restore_state_async(state)")

    async def save_rows(self, sink: RowSink, bits: int = 0) -> dict[str, Any]:
        """Do the same as `save_state_async`, but write the rows to a sink; returns the header."""
        async with self._turn:
            return await self._loop.surviving(partial(save_state, self._loop, sink, bits))

    async def restore_rows(self, state: SavedState) -> None:
        """Do the same as `restore_state_async`, from a state whose rows may be in a file."""
        async with self._turn:
            await self._loop.surviving(partial(restore_state, self._loop, state))

    def require_state_of_model(self, header: Mapping[str, Any]) -> None:
        """Raise OptionError unless a state with this header is of the generator's model, adapters and caches, and
        otherwise the errors of `save_state`.
        """
        require_same(header, identity(self._loop))

    async def aside(self, action: Callable[[RowDecoder], Awaitable[T]]) -> T:
        """Record the decode step, read the bursts under way, keep their tokens and call `action` with the decoder.
        `action` must leave the decoder unchanged; its work is not counted. OptionError unless a token was generated
        since the last change and more can follow, and for several rows.
        """
        async with self._turn:
            loop = self._loop
            loop.require_open()
            if loop.decoder is not None and loop.decoder.records_after is not None and not loop.stale:
                await loop.record()
                await self._policy.advance()
            while loop.flight and not loop.stale:
                await loop.read()
            if loop.decoder is None or loop.run_ahead is None or loop.stale or loop.sample_first:
                raise OptionError("no token was generated since the sequence was last changed; generate one first")
            if len(loop.rows) > 1:
                raise OptionError(f"this generator has {len(loop.rows)} rows; measure a generator with batch_size 1")
            [row] = loop.rows
            if row.ended:
                raise OptionError("generation has ended; rewind_to or append_tokens, and generate one token")
            loop.counts.end(loop.decoder)
            try:
                return await action(loop.decoder)
            finally:
                loop.decoder.row(0).follow([*row.tokens, *row.ready], row.unpicked)
                loop.run_ahead.pause()
                loop.timing.pause()
                loop.counts.begin(loop.decoder)

    async def aclose(self) -> None:
        """Discard the tokens computed ahead and return the KV cache to the model. Closing twice is harmless."""
        if self._loop.closed:
            return
        self._loop.closed = True
        # Only this call returns the decoder, even if its wait is cancelled.
        await asyncio.shield(asyncio.ensure_future(self._end()))

    def close(self) -> None:
        """`aclose`, blocking."""
        if not self._loop.closed:
            self._wait(self.aclose(), "close", "await aclose()")

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Generator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _end(self) -> None:
        async with self._turn:
            await self._loop.end()

    async def replace_scratch_async(self, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None) -> None:
        """Have the kernels of the generator's tapes use these buffers from now on; with None they allocate their own.
        `query_memory_requirements` lists the names in its pool `scratch`. Tokens do not change; buffers that were given
        earlier are released. Open generators may share buffers.

        Raises BufferMismatchError for buffers that cannot be used, and if only onnxruntime allocates scratch;
        OutOfMemoryError. After an error the kernels keep their buffers.
        """
        async with self._turn:
            await self._loop.surviving(partial(self._loop.replace_scratch, scratch))

    def replace_scratch(self, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None) -> None:
        """`replace_scratch_async`, blocking."""
        twin = "await replace_scratch_async(scratch)"
        self._wait(self.replace_scratch_async(scratch), "replace_scratch", twin)

    def _wait(self, awaitable: Coroutine[Any, Any, T], name: str, twin: str) -> T:
        return wait_here(self._model.host, awaitable, name, twin)


def policy_of(params: GeneratorParams) -> type[PlainPolicy]:
    """The policy that these parameters need."""
    speculation, why = params.speculation, None
    if params.guidance is not None or params.processors.given:
        why = f"{'a logits processor' if params.guidance is None else 'a grammar'} looks at each token"
    elif params.rows > 1 and not params.speculation_requested:
        why = f"{params.rows} rows or beams were requested, and drafts are for one sequence"
    if speculation is not None and why is not None:
        fall_back("speculation", why, "each step picks one token; the tokens are the same")
    elif speculation is not None:
        return DraftPolicy if params.drafts_by_model else SpeculationPolicy
    if params.guidance:
        return GrammarPolicy
    if params.search.num_beams > 1:
        return BeamPolicy
    return ProcessorPolicy if params.processors.given else PlainPolicy
