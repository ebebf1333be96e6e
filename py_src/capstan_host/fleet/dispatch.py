"""The client's half: hands batches to Dask, and takes each item's result once."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Client, Future, wait
from distributed.scheduler import KilledWorker

from .browsers import Serving
from .items import Entry, FleetError, Item, ItemError
from .results import ResultFile
from .worker import BrowserPlugin, Unfit, answer_batch

__all__ = ["DEPTH", "Dispatcher"]

DEPTH = 2
"""Batches in flight for each browser: one that it answers, one that waits beside it."""
HELD_BATCHES = 4
"""The most batches, for each browser, whose results wait for an earlier result in order."""
POLL_SECONDS = 0.5
RESULT_SECONDS = 10.0
"""A result that does not arrive in this time was lost with its worker; Dask would wait for another worker."""
REST_SECONDS = 15.0
"""A worker that could not answer is left out for this time, and twice as long after each further failure."""
LOST = ("cancelled", "lost")


@dataclass(frozen=True)
class Flight:
    """A batch that was given to Dask, and the workers that may answer it; an empty set allows any worker."""

    batch: list[Entry]
    workers: frozenset[str]


class Dispatcher:
    """Sends the batches of a fleet's runs to a Dask cluster, whose workers keep browsers by a plugin."""

    def __init__(
        self, client: Client, serving: Serving, attempts: int, patience: float, resources: Mapping[str, float]
    ) -> None:
        self._client, self._serving, self._attempts = client, serving, attempts
        self._patience, self._resources = patience, dict(resources)
        self.name = f"capstan-fleet-{uuid.uuid4().hex[:8]}"
        self.unfit: dict[str, str] = {}
        """Workers that cannot answer, and the reasons."""
        self._rests: dict[str, tuple[float, float]] = {}
        """By worker, the end of its rest, in seconds of the monotonic clock, and the length of the rest."""
        self._register()

    def close(self) -> None:
        """Close the browsers of all workers."""
        self._client.unregister_worker_plugin(self.name)

    def _register(self) -> None:
        """Have all workers, including later ones, keep browsers. Raises FleetError if one lacks the package."""
        try:
            self._client.register_plugin(BrowserPlugin(self.name, self._serving))
        except Exception as error:
            # Dask passes the scheduler's or a worker's error on as a text.
            if "ModuleNotFoundError" not in repr(error):
                raise
            raise FleetError(
                f"the scheduler or a worker lacks a package ({error}): install capstan-webgpu[fleet] of the same "
                "version for each"
            ) from error

    def results(
        self, job: dict[str, Any], numbered: Iterator[Entry | Item], out: str | Path | None, ordered: bool, size: int
    ) -> Iterator[Item]:
        """The result of each entry, once."""
        again: deque[list[Entry]] = deque()
        flying: dict[Future[Any], Flight] = {}
        order: deque[int] = deque()
        held: dict[int, Item] = {}
        refused: list[Item] = []
        heard, ended = time.monotonic(), False
        with ExitStack() as stack:
            file = None if out is None else stack.enter_context(ResultFile(out))
            fresh = (each for each in numbered if isinstance(each, Item) or file is None or not file.has(each))
            stack.callback(lambda: self._client.cancel([*flying]))

            def fresh_batch() -> list[Entry]:
                nonlocal ended
                taken = list(itertools.islice(fresh, size))
                ended = not taken
                order.extend(each.index for each in taken if ordered)
                refused.extend(each for each in taken if isinstance(each, Item))
                return [each for each in taken if isinstance(each, Entry)]

            def settled(items: list[Item]) -> Iterator[Item]:
                if file is not None and items:
                    file.append(items)
                if not ordered:
                    yield from items
                held.update({item.index: item for item in items if ordered})
                while order and order[0] in held:
                    yield held.pop(order.popleft())

            while True:
                browsers = self._browsers()
                while len(flying) < DEPTH * browsers:
                    room = len(held) < HELD_BATCHES * browsers * size
                    batch = again.popleft() if again else fresh_batch() if room else []
                    if not batch:
                        break
                    future, flight = self._submit(job, batch)
                    flying[future] = flight
                if not browsers and not flying and not again and (batch := fresh_batch()):
                    again.append(batch)
                yield from settled(refused)
                refused.clear()
                if not flying and not again:
                    if ended:
                        return
                    continue
                done = self._done(flying)
                for future in done:
                    items, rest = self._taken(future, flying.pop(future).batch)
                    again += rest
                    if items:
                        heard = time.monotonic()
                    yield from settled(items)
                heard = max(heard, time.monotonic() if browsers else heard)
                self._require_workers(time.monotonic() - heard)

    def _submit(self, job: dict[str, Any], batch: list[Entry]) -> tuple[Future[Any], Flight]:
        fit = self._fit() if self.unfit else []
        options = {"workers": fit} if fit else {}
        future = self._client.submit(
            answer_batch,
            self.name,
            job,
            batch,
            key=f"{job['kind']}-{batch[0].index}-{uuid.uuid4().hex[:8]}",
            pure=False,
            resources=self._resources or None,
            **options,
        )
        return future, Flight(batch, frozenset(fit))

    def _done(self, flying: Mapping[Future[Any], Flight]) -> list[Future[Any]]:
        """The batches that have ended, in whatever way, or whose workers are gone; waits a short time for one."""
        if flying:
            with suppress(TimeoutError, CancelledError, OSError):
                wait([*flying], timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
        else:
            time.sleep(POLL_SECONDS)
        here = {*self._workers()}
        return [
            future
            for future, flight in flying.items()
            if future.status != "pending" or (here and flight.workers and not flight.workers & here)
        ]

    def _taken(self, future: Future[Any], batch: list[Entry]) -> tuple[list[Item], list[list[Entry]]]:
        """The results of a batch, and the batches that have to be answered again."""
        if future.status == "pending":
            # Dask would wait for workers of these addresses.
            future.cancel()
        try:
            found = None if future.status in LOST else future.result(timeout=RESULT_SECONDS)
        except KilledWorker as error:
            return self._killed(batch, str(error))
        except (CancelledError, OSError):
            found = None
        except FleetError:
            # A worker that got no plugin from a new scheduler.
            self._register()
            found = None
        finally:
            # Else Dask computes it again once its worker dies.
            future.release()
        if found is None:
            return [], [batch]
        if isinstance(found, Unfit):
            self.unfit[found.worker] = found.reason
            until, rest = self._rests.get(found.worker, (0.0, REST_SECONDS / 2))
            if until <= time.monotonic():
                self._rests[found.worker] = time.monotonic() + 2 * rest, 2 * rest
            return [], [batch]
        for worker in {item.worker for item in found}:
            self.unfit.pop(worker, None)
            self._rests.pop(worker, None)
        return found, []

    def _killed(self, batch: list[Entry], reason: str) -> tuple[list[Item], list[list[Entry]]]:
        """Halve a batch that killed several workers; a single item fails instead."""
        if len(batch) > 1:
            half = (len(batch) + 1) // 2
            return [], [batch[:half], batch[half:]]
        [entry] = batch
        entry = replace(entry, failures=entry.failures + 1)
        if entry.failures < self._attempts:
            return [], [[entry]]
        error = ItemError("KilledWorker", reason)
        return [Item(entry.id, entry.index, entry.digest, "", entry.failures, error=error)], []

    def _workers(self) -> list[str]:
        """The addresses of the workers; none while the scheduler is away."""
        try:
            # Not scheduler_info(), whose workers another thread of Dask's client takes away every two seconds.
            return [*self._client.nthreads()]
        except (OSError, ValueError, TimeoutError):
            return []

    def _fit(self) -> list[str]:
        """The workers except those that rest after they could not answer."""
        now = time.monotonic()
        return [each for each in self._workers() if each not in self._rests or self._rests[each][0] <= now]

    def _browsers(self) -> int:
        return len(self._fit()) * self._serving.browsers

    def _require_workers(self, silent: float) -> None:
        """Raise FleetError if no worker was able to answer for too long."""
        if self._client.status == "closed":
            raise FleetError("the connection to the scheduler is lost: run it again with the same `out`, to go on")
        reasons = "; ".join(f"{worker}: {reason}" for worker, reason in self.unfit.items())
        if silent > self._patience:
            raise FleetError(
                f"no worker can answer ({reasons or f'there is none since {silent:.0f} s'}): mend that, or add workers"
            )
