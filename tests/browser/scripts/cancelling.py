"""Loads and runs that are cancelled, or whose model or another one is closed, at one of their suspensions; runs in the
page."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine
from collections.abc import Generator as Steps
from typing import Any

from capstan import CapstanError, Generator, Model
from capstan.memory import CATEGORIES, ledger

from .running import close_all, parameters, take

SECONDS = 60
"""After which something counts as hanging."""
EMPTY_SECONDS = 10
calm: dict[tuple[str, bool], int] = {}
"""How often an undisturbed work is suspended, by device and whether weights come from the store."""


class Work:
    """A load and a run."""

    def __init__(self, url: str, prompt: list[int], count: int, device: str, stored: bool) -> None:
        self.url, self.prompt, self.count, self.device, self.stored = url, prompt, count, device, stored
        self.model: Model | None = None

    async def run(self) -> list[int]:
        self.model = await Model.load(self.url, device=self.device, disable_file_mapped_weights=not self.stored)
        async with Generator(self.model, parameters(self.model, do_sample=False)) as generator:
            generator.append_tokens(self.prompt)
            return await take(generator, self.count)

    async def close(self) -> None:
        if self.model is not None:
            await self.model.aclose()


@types.coroutine
def stepped(work: Coroutine[Any, Any, Any], suspended: Callable[[int], None]) -> Steps[Any, Any, Any]:
    """Await `work`, and report each of its suspensions by number."""
    number, step, given = 0, work.send, None
    while True:
        try:
            waiting = step(given)
        except StopIteration as end:
            return end.value
        suspended(number)
        number += 1
        try:
            step, given = work.send, (yield waiting)
        except BaseException as error:
            step, given = work.throw, error


async def disturbed(
    models: dict[str, str], *, act: str, device: str, at: float, ms: float, stored: bool, prompt: list[int], count: int
) -> dict[str, Any]:
    """The ends of a work that something happens to, of a second one beside it, and of one afterwards; and how many
    bytes of devices are left. `at` is the place among the suspensions, `ms` how much later it happens."""
    await close_all()
    [url] = models.values()

    def work() -> Work:
        return Work(url, prompt, count, device, stored)

    if (device, stored) not in calm:
        for _ in range(2):
            first = work()
            steps = 0

            def seen(number: int) -> None:
                nonlocal steps
                steps = number

            await stepped(first.run(), seen)
            await first.close()
        calm[device, stored] = steps
    before = taken()
    other = work()
    if act == "close other":
        other.model = await Model.load(other.url, device=device)
    second = asyncio.ensure_future(other.run()) if act == "cancel one" else None
    disturbed = work()
    closing: list[asyncio.Future[None]] = []

    def happen() -> None:
        if act == "close other":
            closing.append(asyncio.ensure_future(other.close()))
        elif act == "close" and disturbed.model is not None:
            closing.append(asyncio.ensure_future(disturbed.close()))
        else:
            task.cancel()

    def suspended(number: int) -> None:
        if number == int(at * calm[device, stored]):
            if ms:
                asyncio.get_running_loop().call_later(ms / 1000, happen)
            else:
                happen()

    async def run() -> Any:
        return await stepped(disturbed.run(), suspended)

    task = asyncio.ensure_future(run())
    found: dict[str, Any] = {"first": await end(task), "second": None if second is None else await end(second)}
    for closed in closing:
        await closed
    await other.close()
    await disturbed.close()
    found["left"] = await left_over(before)
    last = work()
    found["last"] = await end(asyncio.ensure_future(last.run()))
    await last.close()
    found["left at last"] = await left_over(before)
    return found


async def end(task: asyncio.Future[Any]) -> dict[str, Any]:
    """The ids, or the error."""
    done, _ = await asyncio.wait([task], timeout=SECONDS)
    if not done:
        return {"error": "nothing", "message": f"it did not end within {SECONDS} s"}
    try:
        return {"ids": task.result()}
    except (CapstanError, asyncio.CancelledError) as error:
        return {"error": type(error).__name__, "message": str(error)}


def taken() -> int:
    return sum(ledger().bytes(category=name) for name in CATEGORIES)


async def left_over(before: int) -> int:
    """The bytes of devices beyond those of before, once no more of them come free."""
    for _ in range(EMPTY_SECONDS * 20):
        if taken() == before:
            break
        await asyncio.sleep(0.05)
    return taken() - before
