"""Implements the native package's Generator on a capstan.Generator."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

from ..errors import BindingError, OptionError, UnsupportedModelError
from ..generation.generator import Generator as CapstanGenerator
from .genai_model import Adapters, Model
from .genai_tensors import NamedTensors, as_array, flat_numbers, token_rows
from .last_run import LastRun
from .log import fields, log, logs, tensor_lines
from .multimodal_processor import FEATURES, GRID, IDS, NUMBERS, PIXELS, TYPES, items_of, pictures_of
from .params import GeneratorParams
from .speculative import speculation_stats

__all__ = ["Generator"]


class Generator:
    """Generates tokens of one sequence, or of the rows of a batch. `capstan` is the capstan.Generator that it wraps.

    As in the native package, `is_done` becomes true when the generated token ends the sequence; after an
    end-of-sequence token `generate_next_token` gives padding; at max_length it raises an error. After `rewind_to(n)`
    the first `generate_next_token` restores the old token n and generates the token after it.

    A generator that is dropped is freed; `generator.capstan.close()` frees it now.
    """

    def __init__(self, model: Model, params: GeneratorParams, /) -> None:
        chosen = params.of_capstan()
        self.capstan = CapstanGenerator(model.capstan, chosen)
        self._rows, self._by_model = chosen.rows, chosen.drafts_by_model
        self._pad = model.capstan.config.pad_token_id
        self._vocabulary = model.capstan.config.vocab_size
        self._type, self._config = model.type, model.capstan.config
        self._next = [0] * self._rows
        self._back: int | None = None
        """The first token that a rewind cut off, which `generate_next_token` restores."""
        self._done = False
        whole = bool(params.get_search_options()["past_present_share_buffer"])
        self._last = LastRun(model.capstan, self.capstan, chosen, whole)
        self._terminated = False
        search = chosen.search
        self._beams = search.num_beams > 1
        if whole and self._beams:
            log(
                "warning",
                "past_present_share_buffer search option set to true, but has been disabled due to the current "
                "configuration. See https://aka.ms/generate_config for details",
            )
        self._logged: dict[str, object] = {"do_sample": int(search.do_sample), "top_k": search.top_k}
        self._logged |= {"top_p": f"{search.top_p:g}", "temperature": f"{search.temperature:g}"}
        self._ends, self._ended = search.eos_token_ids, set[int]()

    def is_done(self) -> bool:
        """Whether the last generated token ended the sequence."""
        return self._done

    def append_tokens(self, tokens: Any, /) -> None:
        """Add token ids: a list, an array or a Tensor of one dimension, or of two with `batch_size` rows."""
        rows = token_rows(tokens)
        self.capstan.append_tokens(rows if len(rows) > 1 else rows[0])
        self._next = [row[-1] for row in rows for _ in range(self._rows // len(rows))]
        self._last.begin(rows)
        self._back, self._done = None, False
        self._ended.clear()
        if logs("append_next_tokens"):
            for tokens_of_rows in [chain(*rows)] if self._beams else zip(*rows, strict=True):
                self._log_tokens(tokens_of_rows)
        self._log_run()

    def generate_next_token(self) -> None:
        """Generate one token; `get_next_tokens` gives it."""
        if self._terminated:
            raise OptionError("the session is terminated; call set_runtime_option('terminate_session', '0') first")
        if self._done and self.capstan.hit_eos:
            self._next = [self._pad] * self._rows
            return
        if self._back is not None:
            self.capstan.append_tokens([self._back])
            self._last.begin([[self._back]])
            self._log_tokens([self._back])
            self._log_run()
            self._back = None
        if self.capstan.token_count() >= self.capstan.max_length:
            raise OptionError(
                f"generate_next_token: the sequence has {self.capstan.token_count()} tokens; max_length is "
                f"{self.capstan.max_length}: rewind_to, or make a generator with a larger max_length"
            )
        self._go_on()
        if logs("generate_next_token"):
            log("generate_next_token", fields(**self._logged, sequence_length=self.capstan.token_count()))
        self.capstan.generate_next_token()
        self._next = self._last.picked = self.capstan.get_next_tokens()
        self._done = self.capstan.is_done()
        self._log_step()

    def _go_on(self) -> None:
        """Note that the model runs on the picked tokens, if there are any."""
        if self._last.picked is not None:
            self._last.go_on()
            self._log_run()

    def _log_run(self) -> None:
        """Log the tensors of the last run."""
        if tensor_lines():
            self._last.log(self._logits)

    def _log_step(self) -> None:
        """Log the tokens of a step, and whether they end rows."""
        for row, token in enumerate(self._next):
            if token in self._ends and row not in self._ended:
                self._ended.add(row)
                log("hit_eos", f"EOS seen on batch {row}")
        if not self.capstan.hit_eos:
            self._log_tokens(self._next)
        if self.capstan.finish_reason == "length":
            log("hit_max_length", "greedy cpu hit")

    def _log_tokens(self, tokens: Iterable[int]) -> None:
        log("append_next_tokens", "".join(f"{token} " for token in tokens))

    def get_next_tokens(self) -> Any:
        """The tokens that were generated last, int32 [rows]."""
        return as_array(self._next, "int32", [len(self._next)])

    def get_sequence(self, row: int, /) -> Any:
        """All tokens of a row, prompt and generated, int32 [tokens]."""
        found = self.capstan.get_sequence(row)
        return as_array(found, "int32", [len(found)])

    def token_count(self) -> int:
        """Tokens of the sequence."""
        return self.capstan.token_count()

    def rewind_to(self, length: int, /) -> None:
        """Cut the sequence to `length` tokens."""
        before = self.capstan.get_sequence(0) if self._rows == 1 else [0] * self.capstan.token_count()
        if length == len(before):
            return
        self.capstan.rewind_to(length)
        self._last.forget()
        self._done = False
        self._back = before[length] if length else None
        self._next = [0 if self._back is None else self._back] * self._rows

    def get_logits(self) -> Any:
        """The logits of the next tokens, float32 [rows, 1, vocabulary]."""
        self._go_on()
        return self._logits()

    def _logits(self) -> Any:
        return as_array(flat_numbers(self.capstan.get_logits()), "float32", [self._rows, 1, self._vocabulary])

    def set_logits(self, values: Any, /) -> None:
        """Replace the logits of the next tokens: numbers of any shape, one for each token of the vocabulary and row."""
        numbers, needed = flat_numbers(values), self._rows * self._vocabulary
        if len(numbers) != needed:
            raise OptionError(f"set_logits: {len(numbers)} numbers were given; give {needed}")
        self.capstan.set_logits(array("f", numbers))

    def get_input(self, name: str, /) -> Any:
        """An input of the last run: the tokens int64 [rows, tokens], the mask int64 [rows, positions], a cache [rows,
        heads, positions, head size] or a state. OptionError for another name.

        If past and present share a buffer, a cache has max_length positions, the unused ones zero. It is computed by
        running the sequence again, over a separate KV cache.
        """
        return self._last.input(name)

    def get_output(self, name: str, /) -> Any:
        """An output of the last run: logits, float32 [rows, tokens of the run, vocabulary], a cache or a state as
        get_input shows them. OptionError for another name.

        Logits other than those of the next token take one run of the model for each token.
        """
        return self._last.output(name)

    def set_model_input(self, name: str, value: Any, /) -> None:
        """Always raises UnsupportedModelError: Capstan feeds all inputs of the models that it runs."""
        raise UnsupportedModelError(f"set_model_input({name!r}): a model of type {self._type!r} takes only tokens")

    def set_inputs(self, inputs: NamedTensors, /) -> None:
        """Take a processor's results: the sounds that the sequences hear, or the pictures in the prompt, and the first
        tokens. Raises UnsupportedModelError for text models, like the native package.
        """
        if self._config.processor is None:
            raise UnsupportedModelError(f"set_inputs: use append_tokens for a model of type {self._type!r}")
        names = list(inputs.keys())
        sees = self._config.vision is not None
        about = GRID if self._config.vision and self._config.vision.grid else TYPES
        needed, others = (IDS, (PIXELS, about, NUMBERS)) if sees else (FEATURES, (IDS,))
        if needed not in names or any(name not in (needed, *others) for name in names):
            may = " and ".join(others)
            raise BindingError(
                f"set_inputs: the inputs are {', '.join(names) or 'nothing'}; give {needed}, and optionally {may}"
            )
        length = self.capstan.token_count()
        if sees and length:
            raise OptionError(f"the sequence has {length} tokens; pictures come before tokens: rewind_to(0) first")
        if sees:
            self.capstan.see(pictures_of(inputs) if PIXELS in names else [])
        else:
            self.capstan.hear(items_of(inputs[FEATURES]))
        if IDS in names:
            self.append_tokens(inputs[IDS])

    def set_hidden_states(self, values: Any, /) -> None:
        """Always raises UnsupportedModelError: hidden states are for heads that predict several tokens."""
        raise UnsupportedModelError(f"set_hidden_states: a model of type {self._type!r} takes only tokens")

    def snapshot_state(self) -> None:
        """Does nothing: Capstan keeps snapshots for rewinds by itself."""

    def set_active_adapter(self, adapters: Adapters, name: str, /) -> None:
        """Run the model with an adapter from here on. A second adapter is added to the first. Raises OptionError for an
        unknown name, and for an Adapters object other than the first.
        """
        self.capstan.set_active_adapter(adapters.capstan, name)
        self._last.adapted = True

    def set_runtime_option(self, name: str, value: str, /) -> None:
        """Set 'terminate_session'. With '1' generating raises an error until the option is '0' again. Raises
        OptionError for another option.
        """
        if name != "terminate_session" or value not in ("0", "1"):
            raise OptionError(f"runtime option {name!r} is {value!r}; it must be 'terminate_session' with '0' or '1'")
        self._terminated = value == "1"

    def get_speculative_stats(self) -> dict[str, Any]:
        """Statistics of speculation by the native package's names; all 0 if it is off."""
        return speculation_stats(self.capstan.speculation, self._by_model)
