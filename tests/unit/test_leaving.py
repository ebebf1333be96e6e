"""A generator, a model and a session that are dropped without being closed give back what they hold."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import cast

import pytest

from capstan import Generator, GeneratorParams
from capstan.host.leaving import Leaving
from capstan.model import Model
from tests.unit.paper_model import PROMPT, PaperModel, made, run_of, take

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_a_dropped_generator_gives_its_decoder_back() -> None:
    generator, paper = made(run_ahead=3)
    generator.append_tokens(PROMPT)
    assert asyncio.run(take(generator, 4)) == run_of(PROMPT, 4)
    assert paper.decoders[0].unread > 0
    del generator
    gc.collect()
    assert (paper.decoders[0].closed, paper.decoders[0].unread) == (1, 0)


def test_one_that_was_closed_is_not_closed_again() -> None:
    generator, paper = made()
    generator.append_tokens(PROMPT)
    asyncio.run(take(generator, 1))
    generator.close()
    del generator
    gc.collect()
    assert paper.decoders[0].closed == 1


def test_one_that_computed_nothing_gives_nothing_back() -> None:
    generator, paper = made()
    del generator
    gc.collect()
    assert paper.decoders == []


async def test_the_next_generator_waits_for_what_a_dropped_one_gives_back() -> None:
    paper = PaperModel()
    first = Generator(cast(Model, paper))
    first.append_tokens(PROMPT)
    await first.generate_next_token_async()
    del first
    gc.collect()
    assert paper.decoders[0].closed == 0, "it is given back when the loop comes to it"
    await paper.leaving.settled()
    assert paper.decoders[0].closed == 1


async def test_a_fault_while_giving_back_keeps_nobody_waiting() -> None:
    async def fail() -> None:
        raise ValueError("lost")

    leaving = Leaving()
    work = leaving.give_back(fail())
    waiting = asyncio.ensure_future(leaving.settled())
    with pytest.raises(ValueError, match="lost"):
        await work
    await asyncio.wait_for(waiting, 5)


def test_a_generator_that_is_dropped_in_a_notebook_keeps_no_synchronous_call_waiting() -> None:
    async def cell() -> list[int]:
        model = Model(str(FIXTURES / "nano-llama"), device="cpu")
        for _ in range(2):
            generator = Generator(model, GeneratorParams(model))
            generator.append_tokens([5, 6, 7])
            generator.generate_next_token()
            token = generator.get_next_tokens()[0]
            del generator
            gc.collect()
        return [int(token)]

    done: list[int] = []
    thread = threading.Thread(target=lambda: done.extend(asyncio.run(cell())), daemon=True)
    thread.start()
    thread.join(60)
    assert len(done) == 1
