"""A fleet as its user sees it: prompts, conversations, texts or items in, results out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from distributed import Client

from capstan.errors import OptionError
from capstan.loading.load_options import FleetOptions, require_options, taken
from capstan.loading.repository import require_dtype
from capstan.model_files.hub import HubRepository
from capstan.signatures import check_arguments
from capstan.stages.option import INTEGER_LIMIT, integer
from capstan.stages.search import MAX_ROWS, SearchOptions
from capstan.text.messages import read_tools

from .browsers import Serving, request_form
from .dispatch import DEPTH, Dispatcher
from .items import Item, any_input, entries, pair_input, prompt_input, text_input

__all__ = ["Fleet"]

SEVERAL = ("batch_size", "num_beams", "num_return_sequences")


class Fleet:
    """Browsers on the workers of a Dask cluster, each with a page that has `model`.

    `model` is a folder or a GGUF file that each worker can read, the URL of a folder, or a HubRepository. Each worker
    has `browsers_per_worker` browsers, and as many threads or more. `site` is the folder with Capstan's page on the
    workers (see capstan_host.headless.site_folder.find_site). `rows` items are answered together in a page, with
    sequences of `max_length` tokens at most. `options` are those of Model.load.

    A browser that has not answered a batch after `timeout` seconds is replaced; an item that has failed `attempts`
    times is reported as an error. After `patience` seconds without a worker that can answer, a run ends with a
    FleetError. `resources` are the Dask resources that a batch takes from its worker.

    Raises OptionError.
    """

    def __init__(
        self,
        client: Client,
        model: str | Path | HubRepository,
        browsers_per_worker: int = 1,
        *,
        site: str | Path | None = None,
        rows: int = 8,
        max_length: int = 2048,
        attempts: int = 3,
        timeout: float = 900.0,
        patience: float = 120.0,
        resources: Mapping[str, float] | None = None,
        **options: Unpack[FleetOptions],
    ) -> None:
        numbers = {
            "browsers_per_worker": (browsers_per_worker, INTEGER_LIMIT),
            "rows": (rows, MAX_ROWS),
            "attempts": (attempts, INTEGER_LIMIT),
            "max_length": (max_length, INTEGER_LIMIT),
        }
        for name, (value, most) in numbers.items():
            integer(name, value, 1, most, floats=False)
        for name, seconds in (("timeout", timeout), ("patience", patience)):
            if not seconds > 0:
                raise OptionError(f"{name} is {seconds!r}; give seconds above 0")
        require_dtype(options.get("dtype"))
        require_options(FleetOptions, options, pages=True)
        self._rows, self._max_length = rows, max_length
        self._model = model_place(model)
        asked = {**taken(FleetOptions, options), "max_length": max_length}
        given = {name: value for name, value in asked.items() if value is not None}
        where = None if site is None else str(Path(site).resolve())
        self._serving = Serving(self._model, browsers_per_worker, where, given, timeout, attempts)
        self._dispatcher = Dispatcher(client, self._serving, attempts, patience, resources or {})

    @property
    def unfit(self) -> Mapping[str, str]:
        """Workers that cannot answer, and the reasons."""
        return self._dispatcher.unfit

    def generate(
        self,
        prompts: Iterable[Any],
        *,
        max_new_tokens: int = 256,
        as_message: bool = False,
        out: str | Path | None = None,
        ordered: bool = True,
        batch: int | None = None,
        **search: Any,
    ) -> Iterator[Item]:
        """Continue prompts: texts, lists of token ids, or mappings with `prompt`, `prompt_ids` or `messages`, and an
        `id`. With `as_message` a prompt is a user's message, if the model has a chat template. `search` are options of
        capstan.SearchOptions.

        The results come in the order of the prompts, or as they are completed. With a file `out` they are written there
        as JSON lines; items whose results the file already has, for the same input, options and model, are neither
        computed again nor yielded. Prompts are read as they are needed; a prompt that cannot be sent has an `error` as
        its result. Raises OptionError, FleetError, ResultFileError.
        """
        job = self._generating(max_new_tokens, search) | {"as_message": as_message}
        return self._run(job, prompts, prompt_input, out, ordered, DEPTH * self._rows if batch is None else batch)

    def chat(
        self,
        conversations: Iterable[Any],
        *,
        max_new_tokens: int = 256,
        tools: Sequence[Any] | None = None,
        thinking: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        ordered: bool = True,
        batch: int | None = None,
        **search: Any,
    ) -> Iterator[Item]:
        """Answer conversations, each a list of messages or a mapping with `messages`, by the model's chat template;
        `chat_template_kwargs` are variables of the template. See `generate`.
        """
        given = None if tools is None else read_tools("tools", tools)
        job = self._generating(max_new_tokens, search) | {"tools": given, "thinking": thinking, "as_message": True}
        if chat_template_kwargs:
            job["chat_template_kwargs"] = dict(chat_template_kwargs)
        size = DEPTH * self._rows if batch is None else batch
        return self._run(job, conversations, prompt_input, out, ordered, size)

    def embed(
        self,
        texts: Iterable[Any],
        *,
        pooling: str | None = None,
        out: str | Path | None = None,
        ordered: bool = True,
        batch: int = 32,
    ) -> Iterator[Item]:
        """The vectors of texts, as `value`; the fleet's model is an encoder (capstan.embeddings.Embedder). See
        `generate`."""
        return self._run({"kind": "embed", "pooling": pooling}, texts, text_input, out, ordered, batch)

    def loglikelihood(
        self, pairs: Iterable[Any], *, out: str | Path | None = None, ordered: bool = True, batch: int = 32
    ) -> Iterator[Item]:
        """The log probability of a text after its context: (context, text), or mappings with `context` and `text`, or
        with `context_ids` and `token_ids`. `value` has `log_probability`, those of the tokens as `log_probabilities`,
        and whether each token is the most probable one, `greedy`. See `generate`."""
        job = {"kind": "loglikelihood", "max_length": self._max_length}
        return self._run(job, pairs, pair_input, out, ordered, batch)

    def map(
        self,
        script: str | Path,
        items: Iterable[Any],
        *,
        out: str | Path | None = None,
        ordered: bool = True,
        batch: int = 8,
    ) -> Iterator[Item]:
        """Call the function `run(item)` of a Python script in the pages. `script` is its file or its text. It is run
        once in each page, may use await at its top level, and has the fleet's model as `models["model"]`; `run` may be
        a coroutine function. Items, and the results of `run` (`value`), are JSON. See `generate`.
        """
        path = Path(script) if isinstance(script, Path) or "\n" not in script else None
        if path is not None and not path.is_file():
            raise OptionError(f"script is {script!r}, which is not a file; give a file, or a script's text")
        source = str(script) if path is None else path.read_text(encoding="utf-8")
        job = {"kind": "map", "script": source, "filename": "script.py" if path is None else path.name}
        return self._run(job, items, any_input, out, ordered, batch)

    def answer(self, job: dict[str, Any], items: Iterable[Any], *, batch: int) -> Iterator[Item]:
        """Have the pages do a job of capstan_host.fleet.in_page on items in the form for this job. Jobs have kinds,
        such as 'about', 'encode' and 'template' for capstan_host.evaluation. See `generate`.
        """
        return self._run(job, items, any_input, None, True, batch)

    def close(self) -> None:
        """Close the browsers of all workers."""
        self._dispatcher.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _generating(self, max_new_tokens: int, search: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(max_new_tokens, int) or not 1 <= max_new_tokens < self._max_length:
            raise OptionError(
                f"max_new_tokens is {max_new_tokens!r}; give a number from 1 to {self._max_length - 1}, or raise the "
                f"fleet's max_length ({self._max_length})"
            )
        if "max_length" in search:
            raise OptionError("max_length is the fleet's: give it to Fleet, and max_new_tokens here")
        checked = SearchOptions().replace(**search)
        for name in SEVERAL:
            if (value := getattr(checked, name)) != 1:
                raise OptionError(f"{name} is {value}; an item has one sequence and no beam search: leave it at 1")
        lengths = {"max_new_tokens": max_new_tokens, "max_length": self._max_length}
        return {"kind": "generate", "search": search, **lengths}

    def _run(
        self,
        job: dict[str, Any],
        items: Iterable[Any],
        read: Callable[[int, Any], Any],
        out: str | Path | None,
        ordered: bool,
        batch: int,
    ) -> Iterator[Item]:
        integer("batch", batch, 1, INTEGER_LIMIT, floats=False)
        try:
            json.dumps(job, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"the options cannot be sent to a page as JSON ({error}): give others") from error
        place = self._model if isinstance(self._model, str) else {**self._model, "token": None}
        model = {"place": place, "options": self._serving.options}
        numbered = entries(items, {"job": job, "model": model}, read)
        return self._dispatcher.results({**job, "rows": self._rows}, numbered, out, ordered, batch)


def model_place(model: str | Path | HubRepository) -> str | dict[str, Any]:
    """The model's place, in the form that workers receive."""
    if isinstance(model, HubRepository):
        return request_form(model)
    if str(model).startswith(("http://", "https://")):
        return str(model)
    return str(Path(model).absolute())


check_arguments(sys.modules[__name__])
