"""Shows in a notebook: the progress of a load, an answer while it is generated, its tokens' times.

    model = await capstan.Model.load(url, progress=capstan.notebook.LoadProgress())
    answer = await capstan.notebook.stream(generator, tokenizer)

If IPython runs, these are cells' outputs that change in place. In marimo each replaces the output of its cell.
Elsewhere they are lines of text. The objects have `_repr_html_`, by which other tools can display them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any, Protocol

from .generation.generator import Generator
from .host import current_host
from .text.stream import TextStream
from .tokenizer import Tokenizer

__all__ = ["Answer", "LoadProgress", "Timeline", "stream"]

UPDATE_MS = 100.0
"""The shortest time between changes of an output: each change sends the whole output to the notebook."""
WIDTH, HEIGHT = 560, 110
"""The size of a timeline's plot, in CSS pixels."""


class LoadProgress:
    """A `progress` for `Model.load`: a bar for each file, which fills as its bytes arrive."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        """Loaded bytes and all bytes, by the name of the file; 0 if the total is unknown."""
        self.weights: int | None = None
        """Bytes of the weights, once they are known; they may be stored already."""
        self._output = Output(self)

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "weights":
            # 'weights' is not a file but announces the total.
            self.weights = total
            self._output.change(f"{self._announced()}\n", now=True)
            return
        ended = 0 < total <= done
        new_end = ended and self.files.get(what) != (done, total)
        self.files[what] = (done, total)
        self._output.change(f"{self._line(what)}\n" if new_end else "", now=ended)

    def __repr__(self) -> str:
        return "\n".join([self._announced(), *(self._line(what) for what in self.files)])

    def _repr_html_(self) -> str:
        bars = [f"<div>{self._announced()}</div>"]
        for what, (done, total) in self.files.items():
            known = f' value="{min(done, total)}" max="{total}"' if total else ""
            bars.append(f"<div><progress{known}></progress> {escape(self._line(what))}</div>")
        return "".join(bars)

    def _announced(self) -> str:
        return "loading" if self.weights is None else f"loading, {self.weights / 1e6:.1f} MB of weights"

    def _line(self, what: str) -> str:
        done, total = self.files[what]
        return f"{what}: {done / 1e6:.1f}" + (f" of {total / 1e6:.1f} MB" if total else " MB")


class Timeline:
    """The time of each token, in milliseconds since the first one was requested."""

    def __init__(self, times: Sequence[float] = ()) -> None:
        self.times = list(times)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, per second between the first and the last."""
        elapsed = self.times[-1] - self.times[0] if len(self.times) > 1 else 0.0
        return 1000.0 * (len(self.times) - 1) / elapsed if elapsed > 0 else None

    def __repr__(self) -> str:
        if not self.times:
            return "no tokens"
        described = [f"{len(self.times)} token{'s' * (len(self.times) > 1)}", f"the first after {self.times[0]:.0f} ms"]
        rate = self.tokens_per_second
        return ", ".join([*described, f"then {rate:.1f} a second"] if rate is not None else described)

    def _repr_html_(self) -> str:
        """A plot of tokens over time, with a step for each token, so that bursts and pauses are visible."""
        if not self.times:
            return f"<div>{self!r}</div>"
        last = max(self.times[-1], 1e-3)
        across, up = (WIDTH - 2) / last, (HEIGHT - 22) / len(self.times)
        points = ["1," + str(HEIGHT - 20)]
        for count, time in enumerate(self.times, 1):
            x, y = 1 + time * across, HEIGHT - 20 - count * up
            points.append(f"H{x:.1f} V{y:.1f}")
        path = f'<path d="M{" ".join(points)}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        axis = f'<path d="M1,1 V{HEIGHT - 20} H{WIDTH}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
        label = 'font-size="11" fill="currentColor" font-family="sans-serif"'
        texts = (
            f'<text x="1" y="{HEIGHT - 6}" {label}>0</text>'
            f'<text x="{WIDTH - 1}" y="{HEIGHT - 6}" text-anchor="end" {label}>{last:.0f} ms</text>'
        )
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" style="width: 100%; max-width: {WIDTH}px; display: block"'
        return f'<svg {size} role="img" aria-label="{self!r}">{axis}{path}{texts}</svg><div>{self!r}</div>'


class Answer:
    """A generated answer: its `text`, the `token_ids`, the `finish_reason` and the `timeline`."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        """None while more tokens follow."""
        self.timeline = Timeline()

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        text = f'<div style="white-space: pre-wrap; overflow-wrap: anywhere">{escape(self.text)}</div>'
        return text if self.finish_reason is None else text + self.timeline._repr_html_()


async def stream(generator: Generator, tokenizer: Tokenizer, *, max_new_tokens: int | None = None) -> Answer:
    """Generate to the end, or at most `max_new_tokens` tokens, and show the text as it is generated.

    Raises the generator's errors; text that was shown stays. An answer that was cut short can be continued: its
    `finish_reason` is 'length', as at max_length.
    """
    now, answer = current_host().now, Answer()
    pieces = TextStream(tokenizer.decode, generator.get_sequence())
    output = Output(answer)
    output.change("", now=True)
    begun = now()
    try:
        if max_new_tokens is None or max_new_tokens > 0:
            async for token in generator:
                answer.timeline.times.append(now() - begun)
                answer.token_ids.append(token)
                piece = pieces.push(token)
                answer.text += piece
                output.change(piece)
                if len(answer.token_ids) == max_new_tokens:
                    break
    finally:
        rest = pieces.flush()
        answer.text += rest
        answer.finish_reason = generator.finish_reason or "length"
        output.change(f"{rest}\n", now=True)
    return answer


class Handle(Protocol):
    """IPython's DisplayHandle."""

    def update(self, shown: Any) -> None: ...


class Output:
    """An output that shows a changing object: with marimo or IPython if one of them runs, else by printing the new
    text.
    """

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._handle: Handle | None = None
        self._changed = -UPDATE_MS

    def change(self, new: str, *, now: bool = False) -> None:
        """Show that the object has changed; `new` is its additional text. With `now` it is shown immediately."""
        display = display_of_notebook()
        if display is None:
            print(new, end="", flush=True)
            return
        time = current_host().now()
        if not now and time - self._changed < UPDATE_MS:
            return
        self._changed = time
        if self._handle is None:
            self._handle = display(self._shown)
        else:
            self._handle.update(self._shown)


def display_of_notebook() -> Callable[[Any], Handle] | None:
    """The function that displays an object in the output of the running cell; None outside of notebooks."""
    marimo, ipython = sys.modules.get("marimo"), sys.modules.get("IPython")
    if marimo is not None and marimo.running_in_notebook():
        return MarimoOutput
    if ipython is not None and ipython.get_ipython() is not None:
        return partial(ipython.display.display, display_id=True)
    return None


class MarimoOutput:
    """A Handle on the single output of a marimo cell."""

    def __init__(self, shown: Any) -> None:
        self.update(shown)

    def update(self, shown: Any) -> None:
        sys.modules["marimo"].output.replace(shown)
