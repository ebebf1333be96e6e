"""Gives the inputs and outputs of the model's last run, by the native package's names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from ..device.carried_tensor import CarriedTensor
from ..device.element_types import byte_count
from ..errors import OptionError, UnsupportedModelError
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..generation.replay import Replay
from ..graph import CachePair, GraphDescription, StateTensor
from ..host import wait_here
from ..model import Model
from ..model_files.genai_config import InputNames, OutputNames
from .genai_tensors import as_array, flat_numbers, of_bytes
from .log import log, log_logits, log_tensor, logs

__all__ = ["LastRun"]

T = TypeVar("T")


class LastRun:
    """Gives the inputs and outputs of a generator's last run.

    Capstan keeps none of them: tokens reach the host one by one, and the GPU may be some tokens ahead. The logits of
    all tokens of a run, caches and states are computed by running the sequence again, over a separate KV cache.
    """

    def __init__(self, model: Model, generator: Generator, params: GeneratorParams, whole_caches: bool) -> None:
        search = params.search
        self._model, self._generator, self._rows = model, generator, params.rows
        self._pad = model.config.pad_token_id if search.batch_size > 1 else None
        self._beams = search.num_beams > 1
        self._whole_caches = whole_caches and not self._beams
        """Whether caches have room for all positions, because past and present share a buffer."""
        self.tokens: list[list[int]] = []
        """The tokens of the last run, row by row; empty before the first."""
        self.picked: list[int] | None = None
        """The tokens picked from its logits, on which the next run runs."""
        self._padded: list[set[int]] = [set() for _ in range(self._rows)]
        """Positions of padding."""
        self.adapted = False
        """Whether a LoRA adapter is active; then tensors are not shown."""

    def begin(self, rows: list[list[int]]) -> None:
        """Note that tokens were appended: rows of a batch, or the tokens of every sequence."""
        self.tokens = [row for row in rows for _ in range(self._rows // len(rows))]
        self.picked = None
        for padded, row in zip(self._padded, self.tokens, strict=True):
            padded.clear()
            end = len(row)
            while end and row[end - 1] == self._pad:
                end -= 1
                padded.add(end)

    def forget(self) -> None:
        """Note that the sequence was cut."""
        self.tokens, self.picked = [], None

    def go_on(self) -> None:
        """Note that the model ran on the picked tokens."""
        if self.picked is not None:
            self.tokens, self.picked = [[token] for token in self.picked], None

    def input(self, name: str) -> Any:
        """An input by its name in genai_config.json. Raises OptionError if there is none, or before a run."""
        names = self._model.config.decoder.inputs
        about = self._about
        if is_carried(name, vars(names).values()):
            # If past and present share a buffer, the run wrote into the cache that it read.
            state = is_carried(name, (names.past_conv_names, names.past_recurrent_names))
            written = 0 if self._whole_caches and not state else len(self.tokens[0]) if self.tokens else 0
            return self._carried(name, self._length() - written)
        if name not in (names.input_ids, about.mask, about.position_ids) or not name:
            raise OptionError(f"get_input({name!r}): the inputs are {listed(names)}")
        if not self.tokens:
            raise OptionError(f"get_input({name!r}): there was no run yet; append tokens first")
        if name == names.input_ids:
            return as_array(chain(*self.tokens), about.ids_dtype, [len(self.tokens), len(self.tokens[0])])
        length = self._length()
        if name == about.position_ids:
            axes = next(len(each.dims) for each in about.inputs if each.name == name) - 2
            first = length - len(self.tokens[0])
            rows = [place if place not in padded else 0 for padded in self._padded for place in range(first, length)]
            return as_array(rows * (3 if axes else 1), "int64", [*[3] * axes, len(self._padded), length - first])
        mask = [int(place not in padded) for padded in self._padded for place in range(length)]
        return as_array(mask, "int64", [len(self._padded), length])

    def output(self, name: str) -> Any:
        """An output by its name in genai_config.json. Raises OptionError if there is none, or before a run."""
        names = self._model.config.decoder.outputs
        if is_carried(name, vars(names).values()):
            return self._carried(name, self._length())
        others = [each.name for each in self._about.outputs if each.name not in self._own_outputs()]
        if name not in (names.logits, *others):
            raise OptionError(f"get_output({name!r}): the outputs are {', '.join([listed(names), *others])}")
        if not self.tokens:
            raise OptionError(f"get_output({name!r}): there was no run yet; append tokens first")
        if name != names.logits:
            return self._other(name)
        count, vocabulary = len(self.tokens[0]), self._model.config.vocab_size
        if self.picked is None and count == 1:
            found = flat_numbers(self._generator.get_logits())
        else:
            found = [value for row in range(self._rows) for value in self._logits(row, count)]
        return as_array(found, "float32", [self._rows, count, vocabulary])

    def log(self, logits: Callable[[], Any]) -> None:
        """Write the enabled log lines of tensors; `logits` gives the logits of the next token."""
        about = self._about
        carried: tuple[CachePair | StateTensor, ...] = (*about.cache, *about.states)
        if logs("model_input_values"):
            log("model_input_values", "")
            positions = [about.position_ids] if about.position_ids is not None else []
            for name in (about.input_ids, *positions, *filter(None, [about.mask])):
                log_tensor(name, self.input(name), values=True)
            for each in carried:
                # Before the run, unlike `input`.
                log_tensor(each.past, self._carried(each.past, self._length() - len(self.tokens[0])), values=True)
        for kind in ("model_output_shapes", "model_output_values"):
            if logs(kind):
                log(kind, "")
                for name in (about.logits, *(each.present for each in carried)):
                    log_tensor(name, self.output(name), kind == "model_output_values")
        if logs("model_logits"):
            log_logits(logits())

    @property
    def _about(self) -> GraphDescription:
        return self._model._open().memory.description

    def _own_outputs(self) -> set[str]:
        about = self._about
        return {about.logits, *(pair.present for pair in about.cache), *(state.present for state in about.states)}

    def _other(self, name: str) -> Any:
        """Another output of the graph, for the tokens of the last run: [rows, tokens, ...], with zeros at padding."""
        model, count, end = self._model, len(self.tokens[0]), self._length()
        parts: list[bytes] = []
        for row in range(self._rows):
            tokens, places = self._run_tokens(row)
            found = self._wait(model.computed_output(tokens, name))
            _, *rest = dims = found.dims
            if dims[:2] != (1, len(tokens)):
                raise UnsupportedModelError(
                    f"get_output({name!r}): it is {list(dims)} after {len(tokens)} tokens; only outputs with a row "
                    "for each token, [1, tokens, ...], are shown"
                )
            size = len(found.data) // len(tokens)
            each = {place: found.data[index * size :][:size] for index, place in enumerate(places)}
            parts += [bytes(each.get(place, bytes(size))) for place in range(end - count, end)]
        return of_bytes(b"".join(parts), found.dtype, (self._rows, count, *rest[1:]))

    def _logits(self, row: int, count: int) -> list[float]:
        """The logits of the last positions of a row, 0 at padding."""
        tokens, places = self._run_tokens(row)
        end = self._length()
        first = sum(place < end - count for place in places)
        found = self._wait(self._replay(row).logits(tokens, first))
        vocabulary, values = self._model.config.vocab_size, iter(found)
        nothing = [0.0] * vocabulary
        shown: list[float] = []
        for place in range(end - count, end):
            shown += nothing if place in self._padded[row] else [next(values) for _ in range(vocabulary)]
        return shown

    def _carried(self, name: str, length: int) -> Any:
        """A cache of `length` positions, or a state after `length` positions, of all rows."""
        parts = [self._row_carried(row, name, length) for row in range(self._rows)]
        first = parts[0]
        return of_bytes(b"".join(part.data for part in parts), first.dtype, (self._rows, *first.dims[1:]))

    def _row_carried(self, row: int, name: str, length: int) -> CarriedTensor:
        """The cache or state of one row; a cache has zeros at padding, and at unused positions if it is shown whole."""
        tokens, places = self._run_tokens(row)
        places = [place for place in places if place < length]
        tensor = self._wait(self._replay(row).carried(tokens[: len(places)], name))
        if not tensor.positions:
            return tensor
        _, heads, count, head_size = tensor.dims
        room = self._generator.max_length if self._whole_caches else length
        size = len(tensor.data) // (heads * count) if count else byte_count(tensor.dtype, (head_size,))
        whole = bytearray(heads * room * size)
        for head in range(heads):
            for index, place in enumerate(places):
                source, target = (head * count + index) * size, (head * room + place) * size
                whole[target : target + size] = tensor.data[source : source + size]
        return replace(tensor, dims=(1, heads, room, head_size), data=bytes(whole))

    def _run_tokens(self, row: int) -> tuple[list[int], list[int]]:
        """The tokens of a row's last run, and their positions, without padding."""
        length = self._length()
        if self.adapted:
            raise UnsupportedModelError(
                "tensors of runs with an adapter are not shown; get_logits gives the last logits"
            )
        if self._beams and self.tokens and length > len(self.tokens[0]):
            raise UnsupportedModelError("tensors of beams are shown only directly after the prompt; set num_beams=1")
        sequence = self._generator.get_sequence(0 if self._beams else row) if length else []
        places = [place for place in range(length) if place not in self._padded[row]]
        return [sequence[place] for place in places], places

    def _length(self) -> int:
        """The number of positions that ran."""
        if not self.tokens:
            return 0
        return self._generator.token_count() - (self.picked is not None)

    def _replay(self, row: int) -> Replay:
        return Replay(self._model, self._generator.max_length, self._generator.giver(row))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return wait_here(self._model.host, work, "get_output", "capstan.Generator")


def is_carried(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is that of a cache or a state: it matches one of the patterns, which have %d for the layer."""
    for pattern in patterns:
        before, counts, after = pattern.partition("%d")
        layer = name.removeprefix(before).removesuffix(after)
        if counts and layer.isdecimal() and name == f"{before}{layer}{after}":
            return True
    return False


def listed(names: InputNames | OutputNames) -> str:
    return ", ".join(vars(names).values())
