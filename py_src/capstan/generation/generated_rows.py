"""Implements the read-only half of a generator: the contents of its rows, and facts about their computation. It never
waits.
"""

from __future__ import annotations

from ..device.row_interface import Counters
from ..errors import OptionError
from .plain_policy import PlainPolicy
from .row_loop import RowLoop
from .speculation import SpeculationStats
from .speculation_policy import SpeculationPolicy
from .token_times import Timing

__all__ = ["GeneratedRows"]


class GeneratedRows:
    """Base of Generator."""

    def __init__(self, loop: RowLoop, policy: PlainPolicy) -> None:
        self._loop = loop
        self._policy = policy
        self._last: list[int] = []

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence."""
        return self._loop.max_length

    @property
    def timing(self) -> Timing:
        """The times of the tokens; tokens of several rows that arrived together count once."""
        return self._loop.timing

    @timing.setter
    def timing(self, timing: Timing) -> None:
        self._loop.timing = timing

    def get_sequence(self, index: int = 0) -> list[int]:
        """All token ids of a row, prompt and generated, including padding after shorter prompts and after the end of a
        row that ended before others.
        """
        rows = self._loop.sequences
        if not 0 <= index < rows:
            raise OptionError(f"sequence {index} was requested; this generator has 0 to {rows - 1}")
        return self._policy.sequence(index)

    def token_count(self) -> int:
        """The number of tokens in each sequence, including padding."""
        return self._loop.length

    def get_next_tokens(self) -> list[int]:
        """The tokens of the last generate_next_token, one for each row; `pad_token_id` for rows that have ended."""
        return list(self._last)

    def text(self, index: int = 0) -> str:
        """The text of a row generated since tokens were last appended, up to a stop string; the possible start of a
        stop string is withheld until generation is done. OptionError without stop_strings.
        """
        rows = self._loop.rows
        if not 0 <= index < len(rows) or rows[index].text is None:
            raise OptionError(f"text({index}) needs stop_strings, and a row from 0 to {len(rows) - 1}")
        stream = rows[index].stream
        if stream is None:
            return ""
        if self.is_done():
            stream.flush()
        return stream.text

    def is_done(self) -> bool:
        """Whether generation is over: every row has ended, or max_length or max_time is reached."""
        return self.finish_reason is not None

    @property
    def finish_reason(self) -> str | None:
        """'stop' (the model, stop_token_ids or stop_strings ended all rows), 'length' (max_length), 'time' (max_time),
        or None while more tokens can be generated. `hit_eos` is false if the caller's stop ended them."""
        return self._loop.finish_reason

    @property
    def hit_eos(self) -> bool:
        """Whether the model itself ended generation, by an end-of-sequence token."""
        return self._loop.ended

    @property
    def finish_reasons(self) -> list[str | None]:
        """The reason for each row's end; see `finish_reason`."""
        return [self._loop.reason([row], self._loop.late) for row in self._loop.rows]

    @property
    def capture(self) -> str | None:
        """How decode steps run: 'tape', 'ort' or 'off'; None before the first token."""
        return None if self._loop.decoder is None else self._loop.decoder.capture

    @property
    def capture_note(self) -> str | None:
        """The reason why `capture` differs from the requested one."""
        return None if self._loop.decoder is None else self._loop.decoder.capture_note

    @property
    def tape_passes(self) -> dict[str, str]:
        """The effect of each pass over the recorded tape, or the reason why it changed nothing; empty without a
        tape.
        """
        return {} if self._loop.decoder is None else dict(self._loop.decoder.tape_passes)

    @property
    def reused_tokens(self) -> int:
        """The number of prompt tokens on which the model did not run because the prefix cache had their key/value
        rows.
        """
        return self._loop.reused

    @property
    def recomputed_tokens(self) -> int:
        """The number of tokens on which the model ran again: after a rewind to a position whose window has left the
        caches of attention over a window, or to a position before the last snapshot of a model's states.
        """
        return self._loop.recomputed

    @property
    def rope_changes(self) -> int:
        """The number of times that the caches were computed again because the sequence passed the original length of a
        long rope, in either direction: the rotary factors of all positions change there.
        """
        return self._loop.rope_changes

    @property
    def counters(self) -> Counters:
        """Counts of the device's work during decode steps, without prefills. Work of generators that run at the same
        time is included.

        steps, submits, readbacks, readback_bytes, create_buffer, create_bind_group, write_buffer, and
        python_crossings: how often JavaScript entered Python with results.
        """
        self._loop.counts.add(self._loop.decoder)
        return self._loop.counts.totals()

    @property
    def speculation(self) -> SpeculationStats | None:
        """The statistics of speculation; None if it is off."""
        return self._policy.stats if isinstance(self._policy, SpeculationPolicy) else None

    @property
    def records_next(self) -> bool:
        """Whether the next token waits for the decode step to be recorded and checked, which takes seconds: usually
        after the first token of a model that this browser has not run before.
        """
        return self._loop.records_next

    def get_log_probabilities(self) -> list[dict[int, float]]:
        """For each row the natural logarithms of probabilities at its last token: the most probable tokens first, then
        the token itself. They are a softmax of the model's own logits, before search options, grammars and processors.
        A row's entry is empty for a token that a grammar forced, and after the row's end.
        """
        known = self._policy.log_probabilities
        return [dict(known.get(number, {})) for number in range(len(self._loop.rows))]
