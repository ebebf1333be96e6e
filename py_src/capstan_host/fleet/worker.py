"""A Dask worker's half: a plugin that owns the browsers, and the task that answers a batch with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from capstan.errors import OptionError

from .browsers import Browsers, HeadlessSlot, Serving, item_of
from .items import Entry, FleetError, Item, UnfitError

__all__ = ["BrowserPlugin", "Unfit", "answer_batch"]


@dataclass(frozen=True)
class Unfit:
    """A worker that cannot answer, and the reason."""

    worker: str
    reason: str


class BrowserPlugin(WorkerPlugin):
    """Owns the browsers of a worker, which start with the first batches."""

    idempotent = True
    """If the plugin is registered twice, the browsers stay."""

    def __init__(self, name: str, serving: Serving) -> None:
        self.name = name
        self.serving = serving
        self.browsers: Browsers | None = None

    def setup(self, worker: Worker) -> None:
        """Start with the worker. Raises OptionError if the worker has fewer threads than browsers."""
        threads = worker.state.nthreads
        if threads < self.serving.browsers:
            raise OptionError(
                f"browsers_per_worker is {self.serving.browsers}, but worker {worker.address} has {threads} threads, "
                f"each of which waits for one browser: start it with --nthreads {self.serving.browsers}"
            )
        self.browsers = Browsers(self.serving, HeadlessSlot.several)

    def teardown(self, worker: Worker) -> None:
        """Close the browsers when the worker ends."""
        browsers, self.browsers = self.browsers, None
        if browsers is not None:
            browsers.close()


def answer_batch(name: str, job: dict[str, Any], entries: Sequence[Entry]) -> list[Item] | Unfit:
    """A Dask task: the items of a batch, answered by the worker's browsers. Raises FleetError if it has no browsers."""
    worker = get_worker()
    plugin = worker.plugins.get(name)
    if not isinstance(plugin, BrowserPlugin) or plugin.browsers is None:
        raise FleetError(f"worker {worker.address} has no browsers of {name}")
    try:
        return [item_of(outcome, worker.address) for outcome in plugin.browsers.answer(job, entries)]
    except UnfitError as error:
        return Unfit(worker.address, str(error))
