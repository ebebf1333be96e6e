"""When the phases of a load began and ended."""

from __future__ import annotations

import asyncio
from itertools import count

from capstan.host.load_times import during_load, phase


async def test_phases_are_counted_from_the_start_of_the_load_and_may_overlap() -> None:
    clock = count(100.0, 10.0)

    async def part(name: str, turns: int) -> None:
        with phase(name):
            for _ in range(turns):
                await asyncio.sleep(0)

    with during_load(lambda: next(clock)) as times:
        await asyncio.gather(part("long", 3), part("short", 1))
    assert times.phases == {"short": (20.0, 30.0), "long": (10.0, 40.0)}


def test_a_phase_in_parts_lasts_from_the_first_to_the_last() -> None:
    clock = count(0.0, 1.0)
    with during_load(lambda: next(clock)) as times:
        for name in ("weights", "session", "weights"):
            with phase(name):
                pass
    assert times.phases == {"session": (3.0, 4.0), "weights": (1.0, 6.0)}


def test_outside_of_a_load_nothing_is_noted() -> None:
    clock = count(0.0, 1.0)
    with during_load(lambda: next(clock)) as first:
        pass
    with phase("stray"):
        pass
    assert first.phases == {}
