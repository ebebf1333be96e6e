"""The decode loop: prefill, bursts of decode steps that run ahead of the reader, rewinding."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from .device.base import Burst, Counters, Decoder
from .errors import ClosedError, OptionError, PromptError
from .flight import Flight
from .generator_params import GeneratorParams
from .host import wait_here
from .memory import Pools
from .prompt import checked_tokens
from .run_ahead import RunAhead
from .step_counts import StepCounts
from .timing import Timing

if TYPE_CHECKING:
    from .model import Model

__all__ = ["Generator"]

T = TypeVar("T")


class Generator:
    """One sequence of a model, in the shape of onnxruntime-genai's Generator.

    `append_tokens`, `rewind_to`, `get_sequence` and `is_done` never wait. `generate_next_token` waits for the GPU when
    no token is at hand, which in a page needs JavaScript Promise Integration; `generate_next_token_async` and
    `async for token in generator` never block. While one token is read the GPU computes the following ones
    (run-ahead); `append_tokens`, `rewind_to`, `set_logits` and `close` discard them.

    As in onnxruntime-genai, an end-of-sequence token is returned but does not become part of the sequence: what is
    appended afterwards follows the token before it.

    `pools` gives it buffers of the caller's on `model.device` for its KV cache, sampler state, ids and logits; they are
    checked when the first token is prepared.

    Use it as a context manager, or `close()` it: its KV cache then serves the next generator.
    """

    def __init__(self, model: Model, params: GeneratorParams | None = None, *, pools: Pools | None = None) -> None:
        params = params or GeneratorParams(model)
        self._model = model
        self._pools = pools
        self._options = params.search
        self.max_length = params.length_limit(model.config.context_length)
        self._fixed_run_ahead = params.run_ahead
        self.timing = Timing()
        self._sequence: list[int] = []
        self._valid = 0
        """Tokens at the start of the sequence whose KV cache entries are known to be right."""
        self._stale = True
        """The model has to run on the tokens from `_valid` on before the next pick."""
        self._decoder: Decoder | None = None
        self._run_ahead: RunAhead | None = None
        self._ready: deque[int] = deque()
        self._flight = Flight()
        self._sample_first = False
        self._ended = False
        """An end-of-sequence id was picked; it is the last one at hand, and no more is submitted."""
        self._closed = False
        self._last: list[int] = []
        self._counts = StepCounts()
        self._turn = asyncio.Lock()
        """Of who waits for the decoder: what uses it at the same time would meet in its buffers."""

    def append_tokens(self, tokens: Iterable[int]) -> None:
        """Add tokens (ids of the vocabulary) to the sequence; the model runs on them when the next token is asked for.

        Raises PromptError for no tokens, text, an id outside the vocabulary, or more than max_length allows.
        """
        self._require_open()
        vocab = self._model.config.vocab_size
        self._sequence += checked_tokens(tokens, vocab, len(self._sequence), self.max_length)
        self._discard_ahead()

    def rewind_to(self, new_length: int) -> None:
        """Cut the sequence to its first `new_length` tokens; generation goes on from there.

        The KV cache before that point is kept. Raises OptionError outside 0 to the present length.
        """
        self._require_open()
        if not 0 <= new_length <= len(self._sequence):
            raise OptionError(f"rewind_to({new_length}): the sequence has {len(self._sequence)} tokens")
        del self._sequence[new_length:]
        # The last kept token is run again: the logits after it are no longer there.
        self._valid = min(self._valid, max(0, new_length - 1))
        self._discard_ahead()

    def get_sequence(self, index: int = 0) -> list[int]:
        """All token ids, prompt and generated; `index` is the row, of which there is one."""
        if index != 0:
            raise OptionError(f"sequence {index} was asked for; a generator has one row, 0")
        return list(self._sequence)

    def token_count(self) -> int:
        """Tokens in the sequence."""
        return len(self._sequence)

    def get_next_tokens(self) -> list[int]:
        """The token of the last generate_next_token, one for each row."""
        return list(self._last)

    def is_done(self) -> bool:
        """Whether generation is over: an end-of-sequence token was generated, or max_length is reached."""
        return self.finish_reason is not None

    @property
    def finish_reason(self) -> str | None:
        """'eos', 'length', or None while more tokens can be generated."""
        if self._ended and not self._ready:
            return "eos"
        if len(self._sequence) >= self.max_length:
            return "length"
        return None

    @property
    def capture(self) -> str | None:
        """How decode steps run: 'tape', 'ort' or 'off'; None before the first token."""
        return None if self._decoder is None else self._decoder.capture

    @property
    def capture_note(self) -> str | None:
        """Why it is not the capture that was asked for."""
        return None if self._decoder is None else self._decoder.capture_note

    @property
    def tape_passes(self) -> dict[str, str]:
        """What each pass over the recorded tape did, or why it did nothing; empty without a tape."""
        return {} if self._decoder is None else dict(self._decoder.tape_passes)

    @property
    def counters(self) -> Counters:
        """What the device did during decode steps, prefills left out; counts of other generators at work are in it.

        steps, submits, readbacks, readback_bytes, create_buffer, create_bind_group, write_buffer, and
        python_crossings: how often JavaScript entered Python with results.
        """
        self._counts.add(self._decoder)
        return self._counts.totals()

    async def prepare_async(self) -> None:
        """Do now what the first token would wait for besides its prompt: allocate the KV cache, record and check the
        tape and, while there is no prompt yet, compile the kernels that long ones need. Optional; a generator that
        reuses a closed one's KV cache has nothing to do here."""
        async with self._turn:
            self._require_open()
            if self._decoder is None:
                decoder = await self._ready_decoder()
                if not self._sequence:
                    await decoder.warm_up()

    async def _ready_decoder(self) -> Decoder:
        if self._decoder is None:
            self._decoder = await self._model.decoder(self.max_length, self._pools)
            self._decoder.set_search(self._options)
            usual = self._decoder.usual_burst
            self._run_ahead = RunAhead(self._fixed_run_ahead, self._decoder.max_burst, usual)
        return self._decoder

    def prepare(self) -> None:
        """`prepare_async`, blocking."""
        self._wait(self.prepare_async(), "prepare", "await prepare_async()")

    async def generate_next_token_async(self) -> int:
        """Generate one token and return its id. Raises PromptError without tokens, OptionError when done."""
        self._require_more()
        if self.timing.started is None:
            self.timing.started = self._model.host.now()
        while not self._ready:
            async with self._turn:
                if not self._ready:
                    self._require_more()
                    await self._advance()
        return self._take()

    def generate_next_token(self) -> None:
        """Generate one token; read it with get_next_tokens. Raises AsyncRequiredError where it would have to wait."""
        if self._ready and not self._closed:
            self._take()
            return
        self._wait(self.generate_next_token_async(), "generate_next_token", "await generate_next_token_async()")

    async def __aiter__(self) -> AsyncIterator[int]:
        while not self.is_done():
            yield await self.generate_next_token_async()

    async def get_logits_async(self) -> memoryview[float]:
        """The logits the next token will be picked from, float32 [vocab]; tokens computed ahead are discarded."""
        async with self._turn:
            await self._settle()
            return await self._open_decoder().logits()

    def get_logits(self) -> memoryview[float]:
        """`get_logits_async`, blocking."""
        return self._wait(self.get_logits_async(), "get_logits", "await get_logits_async()")

    async def set_logits_async(self, values: bytes | bytearray | memoryview | array[float]) -> None:
        """Replace the logits the next token is picked from: float32 [vocab]. OptionError for another size or type."""
        view = memoryview(values)
        vocab = self._model.config.vocab_size
        if view.format != "f" or view.nbytes != 4 * vocab:
            raise OptionError(f"logits of format {view.format!r} and {view.nbytes} bytes; {vocab} float32 are needed")
        async with self._turn:
            await self._settle()
            self._open_decoder().set_logits(view.cast("B").cast("f"))

    def set_logits(self, values: bytes | bytearray | memoryview | array[float]) -> None:
        """`set_logits_async`, blocking."""
        self._wait(self.set_logits_async(values), "set_logits", "await set_logits_async(values)")

    async def aside(self, action: Callable[[Decoder], Awaitable[T]]) -> T:
        """Read the bursts under way, keep their tokens and lend the decoder to `action`, which leaves it as it was and
        is not counted. OptionError unless a token was generated since the last change and more can be."""
        async with self._turn:
            self._require_open()
            while self._flight and not self._stale:
                await self._read()
            if self._decoder is None or self._run_ahead is None or self._stale or self._sample_first:
                raise OptionError("no token was generated since the sequence was last changed; generate one first")
            if self._ended:
                raise OptionError("generation has ended (eos); rewind_to or append_tokens, and generate one token")
            self._counts.add(self._decoder)
            try:
                return await action(self._decoder)
            finally:
                self._decoder.follow([*self._sequence, *self._ready])
                self._run_ahead.pause()
                self.timing.pause()
                self._counts.begin(self._decoder)

    async def aclose(self) -> None:
        """Discard what was computed ahead and give the KV cache back. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        # Nobody else gives the decoder back if this wait is cancelled.
        await asyncio.shield(asyncio.ensure_future(self._end()))

    def close(self) -> None:
        """`aclose`, blocking."""
        if not self._closed:
            self._wait(self.aclose(), "close", "await aclose()")

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Generator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # How it works.

    async def _end(self) -> None:
        async with self._turn:
            await self._flight.drain()
            self._counts.add(self._decoder)
            if self._decoder is not None and self._run_ahead is not None:
                self._decoder.usual_burst = self._run_ahead.usual
                await self._decoder.close()

    def _take(self) -> int:
        token = self._ready.popleft()
        # The logits this token was picked from came from the token before it.
        self._valid = len(self._sequence)
        if self._ended and not self._ready:
            # Steps past the end repeated the last token's step, with workgroups for a longer sequence if their counts
            # come from a table: its cache entry is computed again if the sequence goes on.
            self._valid = max(0, self._valid - 1)
        else:
            self._sequence.append(token)
        self._last = [token]
        self.timing.token(self._model.host.now())
        return token

    async def _advance(self) -> None:
        """Do what brings the next token nearer: prefill, submit, or wait for a burst."""
        if self._stale:
            await self._prefill()
            if self._stale:
                return
        decoder = self._open_decoder()
        assert self._run_ahead is not None
        if self._sample_first:
            self._submit(1)
            # What is right behind the first pick makes a browser tell of its end later: 7 ms on an H200 for sixteen
            # steps. So the device says how many it takes there.
            self._submit(self._run_ahead.behind_first(decoder.behind_first))
        else:
            while not self._ended and len(self._flight) < decoder.max_in_flight:
                if not self._submit(self._run_ahead.next()):
                    break
        await self._read()

    def _submit(self, picks: int) -> bool:
        """Queue a burst of so many picks, fewer at the end of the sequence; whether there was one."""
        picks = min(picks, self.max_length - len(self._sequence) - len(self._ready) - self._flight.picks)
        if picks <= 0:
            return False
        self._flight.add(picks, self._open_decoder().submit(picks, self._sample_first))
        self._sample_first = False
        return True

    async def _read(self) -> None:
        """Wait for the oldest burst under way and take its ids."""
        burst = self._flight.oldest()
        self.timing.wait(self._model.host.now())
        try:
            found = await burst
        except BaseException:
            # The GPU has gone on, but the ids are lost to a cancelled wait or a fault: the next token is computed anew.
            self._valid = min(self._valid, max(0, len(self._sequence) - 1))
            self._discard_ahead()
            raise
        if not self._stale:
            self._receive(found)

    def _receive(self, burst: Burst) -> None:
        assert self._run_ahead is not None
        self._counts.cross()
        self._run_ahead.observe(burst)
        self.timing.receive(burst)
        if self._ended:
            return
        for token in burst.ids:
            self._ready.append(token)
            if token in self._options.eos_token_ids:
                self._ended = True
                break

    async def _prefill(self) -> None:
        """Run the model on the tokens it has not seen."""
        await self._flight.drain()
        self._counts.add(self._decoder)
        decoder = await self._ready_decoder()
        self._require_open()
        assert self._run_ahead is not None
        end = len(self._sequence)
        self._valid = decoder.reachable(self._valid)
        self._stale = False
        try:
            while self._valid < end:
                part = self._sequence[self._valid : end][: self._options.chunk_size]
                await decoder.prefill(part, self._valid)
                self._require_open()
                if self._stale:
                    # The sequence was changed meanwhile.
                    return
                self._valid += len(part)
        except BaseException:
            self._stale = True
            raise
        decoder.follow(self._sequence)
        self._sample_first = True
        self._run_ahead.pause()
        self.timing.pause()
        self._counts.begin(decoder)

    async def _settle(self) -> None:
        """Have logits for the end of the sequence and nothing computed ahead of it."""
        self._require_tokens()
        if not self._stale and not self._sample_first:
            self._valid = min(self._valid, len(self._sequence) - 1)
            self._discard_ahead()
        while self._stale:
            self._require_tokens()
            await self._prefill()

    def _discard_ahead(self) -> None:
        """What was computed past the end of the sequence is void, and so are the logits."""
        self._stale = True
        self._ready.clear()
        self._ended = False
        self._sample_first = False

    def _wait(self, awaitable: Coroutine[Any, Any, T], name: str, twin: str) -> T:
        return wait_here(self._model.host, awaitable, name, twin)

    def _open_decoder(self) -> Decoder:
        if self._decoder is None:
            raise PromptError("nothing was computed yet; append_tokens and generate first")
        return self._decoder

    def _require_tokens(self) -> None:
        self._require_open()
        if not self._sequence:
            raise PromptError("the sequence is empty; append_tokens first")

    def _require_more(self) -> None:
        """Raise unless there is a token to generate."""
        self._require_tokens()
        if self.is_done():
            raise OptionError(f"generation is done ({self.finish_reason}); append_tokens, rewind_to or a new generator")

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this generator was closed; make a new one")
