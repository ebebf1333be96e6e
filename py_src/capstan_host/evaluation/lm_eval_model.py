"""lm-evaluation-harness' model `capstan`: Capstan's page in headless browsers answers its requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from capstan.errors import OptionError
from capstan.loading.load_options import CacheOptions, DeviceOptions, require_options, rows
from capstan.stages.search import MAX_ROWS, PICKING, SearchOptions

from ..fleet.items import Item
from .runners import Cluster, OneMachine, Pages, Runner, model_place

__all__ = ["CapstanLM"]

logger = logging.getLogger(__name__)

Pair = tuple[Any, list[int], list[int]]
"""A cache key, the tokens of a context, and those to be scored."""

MOST_TOKENS = 4096
"""The longest sequence unless `max_length` is given, or the model's context if that is shorter."""
NEW_TOKENS = 256
HARNESS_DEVICE = "cuda:0"
"""The device that lm_eval's command line passes unless one was given."""
SCORED_AT_ONCE = 32
"""The number of sequences in a batch of scores. They are sorted, so that most begin like the previous one."""
ENCODED_AT_ONCE = 256
TURNS = 4
"""The number of prompts in a batch for each row; a row takes the next prompt when it has finished one."""
AUTO_ROWS = 8
"""The rows for `--batch_size auto`."""
LENGTH_STEP = 256
"""Caches for answers hold a multiple of this number of tokens."""
BATCH_SECONDS = 3600.0
SEARCH = ("do_sample", *PICKING, "no_repeat_ngram_size")
"""The names that a task's generation_kwargs share with Capstan's search options."""


@register_model("capstan")
class CapstanLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """A model in Capstan's page.

    `model` is a folder, a GGUF file, an address, or a repository of `hub`; `site` is the folder with Capstan's page,
    see `find_site`. `browsers` is the number of browsers that are started, each with the model: on this machine or, if
    `scheduler` is the address of a Dask scheduler, on each of its workers. `batch_size` prompts are answered together
    in a page, 8 with "auto". A browser that has no result of a batch after `timeout` seconds is replaced. `max_length`
    limits context and continuation together: a longer sequence loses its beginning, and a warning gives the number of
    these. The other arguments are those of `capstan.Model.load`.

    Raises OptionError, SiteError, RequestError and FleetError.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        site: str | Path | None = None,
        browsers: int = 1,
        scheduler: str | None = None,
        timeout: float = BATCH_SECONDS,
        hub: str | None = None,
        revision: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = NEW_TOKENS,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        runner: Runner | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if unknown := [name for name in options if name not in rows(CacheOptions)]:
            mine = ", ".join(rows(CacheOptions))
            known = f"model, site, browsers, scheduler, timeout, hub, revision, {mine}, max_length"
            raise OptionError(
                f"{', '.join(unknown)}: the model capstan has no such argument; its arguments are {known}, max_gen_toks"
            )
        require_options(CacheOptions, options)
        if model is None:
            raise OptionError("no model is named: give --model_args model=FOLDER, a GGUF file or OWNER/NAME")
        together = AUTO_ROWS if batch_size == "auto" else int(batch_size) if str(batch_size).isdecimal() else 0
        if not 1 <= together <= MAX_ROWS or max_batch_size is not None:
            raise OptionError(
                f"batch_size is {batch_size}: give 1 to {MAX_ROWS}, the prompts that a page answers together, or auto "
                f"for {AUTO_ROWS}, and leave --max_batch_size out"
            )
        device = "auto" if device in (None, HARNESS_DEVICE) else device
        require_options(DeviceOptions, {"device": device}, pages=True)
        for name, value in (("browsers", browsers), ("max_gen_toks", max_gen_toks)):
            if value < 1:
                raise OptionError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if not timeout > 0:
            raise OptionError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
        self._name, self._revision, self.max_gen_toks = str(model), revision, max_gen_toks
        self._rows = together
        place = model_place(self._name, hub, revision, elsewhere=scheduler is not None)
        asked = {"device": device, **options, "max_length": MOST_TOKENS if max_length is None else max_length}
        asked = {key: each for key, each in asked.items() if each is not None}
        pages = Pages(place, browsers, None if site is None else str(site), together, timeout, asked)
        self._runner = runner or (OneMachine(pages) if scheduler is None else Cluster(scheduler, pages))
        self._encoded: dict[str, list[int]] = {}
        self._special: set[str] = set()
        """Encoded texts that consist only of special tokens."""
        try:
            self._learn(max_length)
        except BaseException:
            self.close()
            raise

    def _learn(self, max_length: int | None) -> None:
        """Have the page load the model and describe it."""
        self._about: dict[str, Any] = self._ask({"kind": "about"}, [None])[0].value
        logger.info(f"the model is on {self._about['device']}, adapter {self._about['adapter'] or 'none'}")
        context = self._about["context_length"]
        self.max_length = min(context, MOST_TOKENS) if max_length is None else max_length
        if type(self.max_length) is not int or not 2 <= self.max_length <= context:
            raise OptionError(
                f"max_length is {max_length!r}; it must be from 2 to the model's context_length {context}"
            )
        self._begins = self.tok_encode("a")[:1] == [self.eot_token_id]

    def close(self) -> None:
        """End the browsers. They also end with the program."""
        self._runner.close()

    @property
    def eot_token_id(self) -> int:
        """The token before texts without a context: the one that begins sequences, else one that ends them."""
        return int(self._about["begin_token_id"])

    @property
    def tokenizer_name(self) -> str:
        """A name for the harness' cache of requests."""
        return "__".join(["capstan", *self._name.split("/"), self._revision or "main"])

    def get_model_info(self) -> dict[str, Any]:
        """Facts about the model, for the harness' results."""
        return {"capstan_device": self._about["device"], "capstan_adapter": self._about["adapter"]}

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as a prompt. Without a generation prompt the answer continues the last message."""
        request = {"messages": chat_history, "add_generation_prompt": add_generation_prompt}
        text = self._ask({"kind": "template"}, [request])[0].text or ""
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].strip()
        return text[: text.rindex(last) + len(last)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The tokens of a text. If the tokenizer puts a token that begins sequences before them, a text that already
        has this token keeps only one; with `add_special_tokens` False the added one is removed.
        """
        self._encode([string])
        ids = self._encoded[string]
        if ids[:1] == [self.eot_token_id] and getattr(self, "_begins", False):
            return ids[1:] if add_special_tokens is False or ids[1:2] == ids[:1] else ids
        return ids

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """See TemplateLM; all texts are tokenized first."""
        pairs = [request.args for request in requests]
        texts = [text for context, continuation in pairs for text in (context.rstrip(), context + continuation)]
        self._encode(texts, disable_tqdm)
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return scored

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text after the token that begins sequences, in windows of `max_length` tokens. In
        each window except the first, the scored tokens follow as many earlier tokens as fit.
        """
        texts = [request.args[0] for request in requests]
        self._encode(texts, disable_tqdm)
        windows: list[Pair] = []
        owners: list[int] = []
        for place, text in enumerate(texts):
            ids = self.tok_encode(text, add_special_tokens=False)
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(place)
        totals = [0.0] * len(texts)
        for place, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[place] += value
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that the model writes after each context, up to the first of the strings of `until`. An unknown
        generation option raises OptionError."""
        contexts = [request.args[0] for request in requests]
        self._encode(contexts, disable_tqdm)
        asked = [self._prompt(*request.args) for request in requests]
        self._warn_of_cuts([self.tok_encode(text) for text in contexts], [ids for ids, _ in asked])
        # A page answers those of the same options together.
        groups: dict[str, list[int]] = {}
        for place, (_, options) in enumerate(asked):
            groups.setdefault(json.dumps(options), []).append(place)
        texts = [""] * len(asked)
        with tqdm(total=len(asked), disable=disable_tqdm, desc="Generating texts") as bar:
            for places in groups.values():
                # The longest come first: a failure for lack of memory shows at once.
                places.sort(key=lambda place: -len(asked[place][0]))
                ids, options = asked[places[0]]
                steps = -(-(len(ids) + options["max_new_tokens"]) // LENGTH_STEP)
                job = {"kind": "generate", **options, "max_length": min(self.max_length, steps * LENGTH_STEP)}
                prompts = [{"prompt_ids": asked[place][0]} for place in places]
                for place, item in zip(places, self._ask(job, prompts, TURNS * self._rows, bar), strict=True):
                    texts[place] = item.text or ""
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _loglikelihood_tokens(self, requests: list[Pair], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        cut = [self._cut(context, tokens) for _, context, tokens in requests]
        self._warn_of_cuts([[*context, *tokens] for _, context, tokens in requests], [[*a, *b] for a, b in cut])
        # Each distinct sequence once, in an order in which those that begin alike follow one another.
        keys = [(tuple(context), tuple(tokens)) for context, tokens in cut]
        order = sorted({key for key in keys if key[1]}, key=lambda key: (key[0] + key[1], len(key[0])))
        asked = [{"context_ids": [*key[0]], "token_ids": [*key[1]]} for key in order]
        job = {"kind": "loglikelihood", "max_length": self.max_length}
        with tqdm(total=len(order), disable=disable_tqdm, desc="Scoring sequences") as bar:
            values = [item.value for item in self._ask(job, asked, SCORED_AT_ONCE, bar)]
        found = {key: (each["log_probability"], each["greedy"]) for key, each in zip(order, values, strict=True)}
        answers = [found.get(key, (0.0, True)) for key in keys]
        for (name, _, _), answer in zip(requests, answers, strict=True):
            if name is not None:
                self.cache_hook.add_partial("loglikelihood", name, answer)
        return answers

    def _cut(self, context: list[int], tokens: list[int]) -> tuple[list[int], list[int]]:
        """The last `max_length` tokens of a context and of the tokens after it; at least one token stays in the
        context.
        """
        whole = [*context, *tokens][-self.max_length :]
        scored = min(len(tokens), len(whole) - 1)
        return whole[: len(whole) - scored], whole[len(whole) - scored :]

    def _warn_of_cuts(self, wholes: Iterable[list[int]], kept: Iterable[list[int]]) -> None:
        lost = [len(whole) - len(rest) for whole, rest in zip(wholes, kept, strict=True) if len(whole) > len(rest)]
        if lost:
            logger.warning(
                f"{len(lost)} sequences are longer than max_length {self.max_length} allows and lost their beginnings, "
                f"{sum(lost)} tokens in all; the model's context_length is {self._about['context_length']}"
            )

    def _encode(self, texts: Iterable[str], disable_tqdm: bool = True) -> None:
        """Have the page tokenize the texts that it did not tokenize before."""
        new = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        with tqdm(total=len(new), disable=disable_tqdm or not new, desc="Tokenizing texts") as bar:
            found = self._ask({"kind": "encode"}, new, ENCODED_AT_ONCE, bar)
        self._encoded |= {text: item.token_ids for text, item in zip(new, found, strict=True)}
        self._special |= {text for text, item in zip(new, found, strict=True) if item.value["special"]}

    def _ask(self, job: dict[str, Any], inputs: list[Any], size: int = 1, bar: Any = None) -> list[Item]:
        return self._runner.run(job, inputs, size, bar.update if bar is not None else lambda _: None)

    def _prompt(self, context: str, gen_kwargs: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """The tokens of a context that are kept, and the options of its answer in the form of a job."""
        options = normalize_gen_kwargs(gen_kwargs, self.max_gen_toks)
        new, until, seed = options.pop("max_gen_toks"), options.pop("until", []), options.pop("seed", None)
        search = {name: options.pop(name) for name in SEARCH if name in options}
        if options:
            raise OptionError(
                f"generation_kwargs has {', '.join(options)}, which is no option of Capstan: take until, max_gen_toks, "
                f"seed, {', '.join(SEARCH)}"
            )
        if not search["do_sample"]:
            search.pop("temperature", None)
        if seed is not None:
            search["random_seed"] = seed
        if not 1 <= new < self.max_length:
            raise OptionError(f"max_gen_toks is {new}; it must be from 1 to max_length {self.max_length}, less one")
        # A special token, such as "</s>" of many tasks, has no text: its id ends an answer in place of a stop string.
        self._encode(until)
        ends = {text: self.tok_encode(text, add_special_tokens=False) for text in until if text in self._special}
        ends = {text: ids for text, ids in ends.items() if len(ids) == 1}
        search["stop_strings"] = [text for text in until if text and text not in ends]
        if ends:
            search["stop_token_ids"] = [ids[0] for ids in ends.values()]
        SearchOptions().replace(**search)
        ids = self.tok_encode(context) or [self.prefix_token_id]
        return ids[-(self.max_length - new) :], {"max_new_tokens": new, "search": search}
