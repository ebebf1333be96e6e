"""Picks tokens by drafting them and verifying the drafts in one step, when that is faster."""

from __future__ import annotations

from ..device.row_interface import ONE, Burst, DraftedRows, RowDecoder
from ..fallback import fall_back
from .generator_params import GeneratorParams
from .plain_policy import PlainPolicy
from .row_loop import RowLoop
from .run_ahead import RunAhead
from .speculation import NgramIndex, SpeculationStats, Worth

__all__ = ["SpeculationPolicy"]

BURST_MS = 3.0
"""Drafting begins after the bursts under way, so that these are shorter. Measured on an NVIDIA H200 with SmolLM2-135M
and 7 drafts: a text that repeats its prompt comes 1.63 times as fast as without drafts; with bursts of 6 ms, 1.40
times.
"""


class SpeculationPolicy(PlainPolicy):
    """One sequence. A drafted step runs the model over the last token and the drafts after it, and picks at each
    position in turn, as steps of one token would, up to the first pick that differs from its draft.

    Raises OptionError for several rows.
    """

    takes_unrecorded = False  # Steps over drafts are made from the recorded one.

    def __init__(self, loop: RowLoop, params: GeneratorParams) -> None:
        super().__init__(loop, params)
        options = params.speculation
        assert options is not None
        options.require_one_sequence(len(loop.rows), params.search.num_beams)
        self.stats = SpeculationStats()
        self._speculation = options
        self._verifier: DraftedRows | None = None
        """The decoder, if it verifies drafts."""
        self._finds_drafts = False
        """Whether the decoder finds drafts by itself."""
        self._worth = Worth(self.stats, options.always)
        self._index = NgramIndex(options)
        self._imagined: list[int] | None = None
        """Drafts of a step that ran without them, to count how many would have been accepted."""
        self._seen = 0
        """The tokens of that step so far."""
        self._readable: float | None = None
        self._drafting_ms = 0.0
        """The host's time to find the drafts of the last step."""
        self._drafted_bursts: RunAhead | None = None

    def run_ahead(self, decoder: RowDecoder) -> RunAhead:
        # The decoder finds no drafts for now: `prepare` requests that only of a sequence's first decoder.
        self._verifier = None
        return RunAhead(self._fixed_run_ahead, decoder.max_burst, decoder.usual_burst, BURST_MS)

    async def prepare(self, decoder: RowDecoder, new: bool) -> None:
        """Ask a new device whether it verifies drafts."""
        if not new:
            return
        assert isinstance(decoder, DraftedRows), "a decoder of one row"
        self._finds_drafts = decoder.finds_drafts
        reason = await self._prepare_drafts(decoder)
        if reason is None:
            self._verifier = decoder
        else:
            fall_back("speculation", reason, "each step picks one token; the tokens are the same")
        largest = max(1, decoder.max_burst // (1 + self._speculation.max_draft_tokens))
        self._drafted_bursts = RunAhead(self._fixed_run_ahead and min(self._fixed_run_ahead, largest), largest)

    async def _prepare_drafts(self, decoder: DraftedRows) -> str | None:
        """Prepare the decoder's drafts; returns the reason if it cannot verify any."""
        return await decoder.prepare_drafts(self._speculation)

    async def pick(self) -> None:
        verifier = None if self.loop.sample_first else self._verifier
        if verifier is not None:
            self._index.follow([*self.loop.rows[0].tokens, *self.loop.rows[0].ready])
        if verifier is None or not self._worth.on:
            await super().pick()
            return
        if self.loop.flight and not self._finds_drafts:
            # The drafts follow from the picks under way, so these come first.
            await self.loop.read()
            return
        await self._fill_drafted(verifier)

    async def _fill_drafted(self, verifier: DraftedRows) -> None:
        """Queue bursts of drafted steps, and wait for the oldest burst."""
        assert self._drafted_bursts is not None
        while len(self.loop.flight) < self.loop.open_decoder().max_in_flight:
            if not await self._submit_drafted(verifier, self._drafted_bursts) and not self._submit_plain():
                break
        if self.loop.flight:
            await self.loop.read()

    def _submit_plain(self) -> bool:
        """Queue steps of one token, if there are no drafts or no room for them."""
        assert self.loop.run_ahead is not None
        return self.loop.submit(self.loop.run_ahead.next() if self._finds_drafts else 1)

    async def _submit_drafted(self, decoder: DraftedRows, bursts: RunAhead) -> bool:
        """Queue a burst of drafted steps; False if there was none to queue."""
        [row] = self.loop.rows
        most = 1 + self._speculation.max_draft_tokens
        room = row.room(self._reach)
        if row.ended or room < most:
            return False
        if self._finds_drafts:
            steps = min(bursts.next(), room // most)
            self.loop.flight.add(steps * most, decoder.submit_drafted(steps, None), self.loop.rows, ONE)
            return True
        began = self.loop.model.host.now()
        drafts = await self._drafts()
        self._drafting_ms = self.loop.model.host.now() - began
        self.stats.drafting_ms += self._drafting_ms
        if self.loop.stale:
            # The sequence changed meanwhile.
            return False
        if not drafts:
            self.stats.misses += 1
            return False
        self.loop.flight.add(1 + len(drafts), decoder.submit_drafted(1, drafts), self.loop.rows, ONE)
        return True

    @property
    def _reach(self) -> int:
        """The length up to which tokens may be drafted."""
        return self.loop.reach

    async def _drafts(self) -> list[int]:
        """Drafts of the next tokens, on a device that finds none."""
        return self._index.drafts()

    def received(self, burst: Burst) -> bool:
        self._time(burst)
        [row], bursts = self.loop.rows, self._drafted_bursts
        assert bursts is not None
        if not burst.steps:
            bursts.passed(burst)
            self._imagine(burst.rows[0])
            return False
        assert self.loop.run_ahead is not None
        self.loop.run_ahead.passed(burst)
        bursts.observe(burst)
        self._imagined = None
        start = 0
        for count in burst.steps:
            ids = burst.rows[0][start : start + count]
            start += count
            end = next((place for place, token in enumerate(ids) if token in self.loop.ends), count)
            ids = ids[: end + 1]
            if row.ended or row.barren:
                break
            self._verified(ids)
            row.receive(ids, self.loop.ends)
        return True

    def _time(self, burst: Burst) -> None:
        """Learn the time of a step."""
        last, self._readable = self._readable, burst.readable
        decoder = self.loop.open_decoder()
        if decoder.max_in_flight == 1:
            finding = self._drafting_ms if burst.steps else 0.0
            self._worth.took((finding + burst.entered - burst.submitted) / burst.picks, bool(burst.steps))
        elif last is not None and burst.submitted <= last:
            self._worth.took((burst.readable - last) / burst.picks, bool(burst.steps))

    def _verified(self, ids: tuple[int, ...]) -> None:
        """Take the picks of a drafted step."""
        drafts = self._index.drafts()
        if drafts:
            self.stats.verified(len(drafts), len(ids))
        else:
            self.stats.misses += 1
            self.stats.plain += len(ids)
        self._worth.gave(len(ids))
        for token in ids:
            self._index.push(token)

    def _imagine(self, ids: tuple[int, ...]) -> None:
        """Take the picks of steps of one token, and count the drafts that would have been accepted."""
        self.stats.plain += len(ids)
        for token in ids:
            if self._imagined is None:
                self._imagined, self._seen = self._index.drafts(), 0
            drafted = self._seen < len(self._imagined) and self._imagined[self._seen] == token
            self._seen += 1
            self._index.push(token)
            if not drafted:
                if self._imagined or self._finds_drafts:
                    self._worth.gave(self._seen)
                self._imagined = None

    def discarded(self) -> None:
        super().discarded()
        self._imagined = self._readable = None
