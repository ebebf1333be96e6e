"""The browsers that answer: those of this machine, or of the workers of a Dask cluster."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from capstan.errors import CapstanError, OptionError
from capstan.model_files.file_names import is_gguf
from capstan.model_files.hub import HUGGING_FACE, HubRepository

from ..fleet.browsers import Browsers, HeadlessSlot, Serving, item_of, request_form
from ..fleet.items import Entry, Item, ItemError
from ..headless.site_folder import find_site

__all__ = ["Cluster", "OneMachine", "Pages", "RequestError", "Runner", "model_place"]

ATTEMPTS = 3
"""How often an item is tried; a browser that dies is replaced."""
ID = r"[\w-][\w.-]*/[\w.-]*[\w-](:[\w./-]+)?"
"""A repository's id, or that of a GGUF file in one."""
Done = Callable[[int], object]


class RequestError(CapstanError):
    """A page answered an item with an error; `type` is the error's class in the page."""

    def __init__(self, error: ItemError) -> None:
        super().__init__(f"{error.type}: {error.message}")
        self.type = error.type


class Runner(Protocol):
    """Does jobs of capstan_host.fleet.in_page."""

    def run(self, job: dict[str, Any], inputs: Sequence[Any], size: int, done: Done) -> list[Item]:
        """The results of the inputs in their order; `size` inputs go to a page together. `done` is called with the
        number of inputs that were answered since the last call. Raises RequestError, FleetError.
        """

    def close(self) -> None:
        """End the browsers."""


def model_place(
    model: str, hub: str | None = None, revision: str | None = None, elsewhere: bool = False
) -> str | HubRepository:
    """The model's place: a path, an address or a repository. Raises OptionError if there is no such model; with
    `elsewhere` an absolute path belongs to other machines, and only they check it.
    """
    path = Path(model).expanduser()
    if re.match("https?://", model):
        return model
    if path.is_dir() or (path.is_file() and is_gguf(path.name)) or (elsewhere and path.is_absolute()):
        return str(path.absolute())
    if path.exists() or not re.fullmatch(ID, model) or path.parent.is_dir():
        raise OptionError(
            f"model={model} is no model: give a folder that onnxruntime-genai's model builder wrote, a GGUF file, "
            "an address, or a hub's repository as OWNER/NAME or OWNER/NAME:FILE.gguf"
        )
    token = os.environ.get("CAPSTAN_HUB_TOKEN") or None
    address = hub or os.environ.get("CAPSTAN_HUB") or HUGGING_FACE
    return HubRepository(model, address, revision or "main", token)


@dataclass(frozen=True)
class Pages:
    """The pages that answer: `browsers` browsers with the page in the folder `site` (see find_site), which load the
    model with `options` of Model.load. A page answers `rows` prompts together, and has `timeout` seconds for a batch.
    """

    model: str | HubRepository
    browsers: int
    site: str | None
    rows: int
    timeout: float
    options: dict[str, Any]


class OneMachine:
    """Browsers of this machine."""

    def __init__(self, pages: Pages) -> None:
        place = pages.model if isinstance(pages.model, str) else request_form(pages.model)
        serving = Serving(place, pages.browsers, str(find_site(pages.site)), pages.options, pages.timeout, ATTEMPTS)
        self._rows = pages.rows
        self._browsers: Browsers | None = Browsers(serving, HeadlessSlot.several)
        atexit.register(self.close)

    def run(self, job: dict[str, Any], inputs: Sequence[Any], size: int, done: Done) -> list[Item]:
        """See Runner."""
        assert self._browsers is not None
        entries = [Entry(str(index), index, "", each) for index, each in enumerate(inputs)]
        batches = [entries[start : start + size] for start in range(0, len(entries), size)]
        found = self._browsers.answer_all({**job, "rows": self._rows}, batches, done)
        return checked(item_of(each, "") for outcomes in found for each in outcomes)

    def close(self) -> None:
        """End the browsers."""
        browsers, self._browsers = self._browsers, None
        if browsers is not None:
            atexit.unregister(self.close)
            browsers.close()


class Cluster:
    """Browsers on each worker of the Dask scheduler at an address. The site's folder must exist on the workers. Raises
    OptionError if no scheduler answers.
    """

    def __init__(self, scheduler: str, pages: Pages) -> None:
        try:
            from distributed import Client  # noqa: PLC0415  (in the extra `fleet`)

            from ..fleet.fleet_client import Fleet  # noqa: PLC0415  (in the extra `fleet`)
        except ImportError as error:
            raise OptionError(
                f'scheduler is {scheduler}: that needs Dask ({error}); run `pip install "capstan-webgpu[fleet]"`'
            ) from error
        try:
            self._client = Client(scheduler)
        except (OSError, ValueError) as error:
            raise OptionError(
                f"scheduler is {scheduler}, which does not answer ({error}): give the address that `dask scheduler` "
                "prints, such as tcp://HOST:8786"
            ) from error
        try:
            self._fleet = Fleet(
                self._client,
                pages.model,
                pages.browsers,
                site=pages.site,
                rows=pages.rows,
                timeout=pages.timeout,
                attempts=ATTEMPTS,
                **pages.options,
            )
        except BaseException:
            self._client.close()
            raise

    def run(self, job: dict[str, Any], inputs: Sequence[Any], size: int, done: Done) -> list[Item]:
        """See Runner."""
        found = []
        for item in self._fleet.answer(job, inputs, batch=size):
            found.append(item)
            done(1)
        return checked(found)

    def close(self) -> None:
        """End the browsers of the workers, and the connection."""
        self._fleet.close()
        self._client.close()


def checked(items: Iterable[Item]) -> list[Item]:
    """The items. Raises RequestError for the first item with an error."""
    found = list(items)
    for item in found:
        if item.error is not None:
            raise RequestError(item.error)
    return found
