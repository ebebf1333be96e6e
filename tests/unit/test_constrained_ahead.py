"""The loop under a grammar that the device follows: picks run ahead, and wait for a mask where the device has none."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from capstan import FallbackWarning, Generator, GeneratorParams, Model
from capstan.errors import GuidanceError
from capstan.guidance import Guidance, TokenBytes
from capstan.local.numpy_token_walks import LocalTokenWalks
from tests.unit.paper_model import EOS, PROMPT, VOCAB, PaperModel, run_of, take

PIECES = [chr(33 + token) if token < 90 else "" for token in range(VOCAB)]


class Letters:
    """Tokens that are characters, so that any text fits what a model picks."""

    def token_bytes(self) -> TokenBytes:
        return TokenBytes(PIECES, [EOS])

    def token_walks(self) -> LocalTokenWalks:
        return LocalTokenWalks(self.token_bytes())

    def encoder(self) -> None:
        """Nothing is forced."""


class LetterModel(PaperModel):
    vocabulary = Letters()


def guided(data: str = "(?s).+", kind: str = "regex", *, run_ahead: int | None = 4) -> tuple[Generator, LetterModel]:
    paper = LetterModel(follows=True)
    params = GeneratorParams(cast(Model, paper), run_ahead=run_ahead)
    params.set_guidance(kind, data)
    generator = Generator(cast(Model, paper), params)
    generator.append_tokens(PROMPT)
    return generator, paper


def test_picks_run_ahead_of_their_ids() -> None:
    generator, paper = guided()
    assert asyncio.run(take(generator, 13)) == run_of(PROMPT, 13)
    [decoder] = paper.decoders
    assert [picks for picks, _ in decoder.submitted[1:]] == [4] * (len(decoder.submitted) - 1)
    assert decoder.masks == []
    assert len(decoder.positions) == 1, "the device follows by itself"


def test_the_device_is_told_anew_where_a_changed_sequence_is() -> None:
    expression = "(?s).{3}.*"
    generator, paper = guided(expression)
    ids = asyncio.run(take(generator, 6))
    outputs = [[], ids[:5], ids[:2], ids[:1]]
    for output in outputs[1:]:
        generator.rewind_to(len(PROMPT) + len(output))
        behind = asyncio.run(take(generator, 2))
        assert behind == run_of([*PROMPT, *output], 2)
    # Appended tokens are no output.
    outputs.append([*ids[:1], *behind])
    generator.append_tokens([3])
    asyncio.run(take(generator, 1))
    automaton = Guidance("regex", expression).automaton()
    texts = ["".join(PIECES[token] for token in output) for output in outputs]
    stacks = [stack for text in texts for stack in automaton.after(automaton.start, text.encode())]
    assert paper.decoders[0].positions == stacks


def test_a_pick_that_the_device_has_no_mask_for_waits_for_the_hosts() -> None:
    generator, paper = guided()
    asyncio.run(take(generator, 1))
    [decoder] = paper.decoders
    decoder.barren_at = len(PROMPT) + 6
    assert asyncio.run(take(generator, 11)) == run_of([*PROMPT, *run_of(PROMPT, 1)], 11)
    assert len(decoder.masks) == 1
    assert len(decoder.positions) == 2, "the device goes on by itself behind it"


def test_where_no_token_fits_is_told() -> None:
    generator, paper = guided("\\n")
    asyncio.run(generator.prepare_async())
    paper.decoders[0].barren_at = len(PROMPT)
    for _ in range(2):
        with pytest.raises(GuidanceError, match="no token of the vocabulary continues 0 output tokens"):
            asyncio.run(take(generator, 1))


def test_a_grammar_of_several_readings_is_a_step_down() -> None:
    generator, paper = guided("root ::= [!-z] root [!-z] | [!-z]", "ebnf")
    with pytest.warns(FallbackWarning, match="a grammar that the GPU follows: ebnf: the next byte does not determine"):
        assert asyncio.run(take(generator, 3)) == run_of(PROMPT, 3)
    [decoder] = paper.decoders
    assert all(burst == (1, True) for burst in decoder.submitted)
    assert len(decoder.masks) == 3
    assert decoder.positions == []
