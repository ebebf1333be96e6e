"""A conversation runs the model on what is new in its messages, over a device made of paper."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from capstan import PromptError, Tokenizer
from capstan.generation.chat_prompt import ChatPrompts
from capstan.generation.conversation import Conversation
from tests.unit.paper_model import PaperDecoder, PaperModel, made, run_of

Message = Mapping[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Letters:
    """A tokenizer whose ids are the code points of characters, less 32. Its template ends a message with '|'."""

    __class__ = Tokenizer  # type: ignore[assignment]  # what `isinstance` asks

    def __init__(self, forget: bool = False, capitals: bool = False) -> None:
        self.forget = forget
        """The template leaves out what was answered before the last message."""
        self.capitals = capitals
        """Text is encoded as capitals, so that the ids of an answer differ from those of its text."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 32 for letter in (text.upper() if self.capitals else text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token + 32) for token in ids)

    def special_tokens_in(self, text: str) -> list[int]:
        return []

    def apply_chat_template(self, messages: Sequence[Message], **options: Any) -> str:
        shown = [each for each in messages if each["role"] == "user" or not self.forget]
        return "".join(f"{each['content']}|" for each in [*options.get("tools", ()), *shown])


def prompts(tokenizer: Letters, paper: Any) -> ChatPrompts:
    return ChatPrompts(tokenizer, paper)


def begun(tokenizer: Letters | None = None, **options: Any) -> tuple[Conversation, PaperModel]:
    generator, paper = made(**options)
    return Conversation(prompts(tokenizer or Letters(), paper), generator), paper


def answered(
    talk: Conversation, messages: Sequence[Message], limit: int | None = 6, given: Sequence[int] = ()
) -> tuple[int, str, str]:
    """The tokens kept, the answer's text behind the given tokens, and why it ended."""
    kept = talk.ask(messages)
    text: list[str] = []
    reason = asyncio.run(talk.answer(limit, lambda _token, delta: text.append(delta), given))
    return kept, "".join(text), reason


def prefills(paper: PaperModel) -> list[tuple[list[int], int]]:
    decoder: PaperDecoder = paper.decoders[0]
    return decoder.prefills


def test_a_second_turn_runs_the_model_on_the_new_message_alone() -> None:
    talk, paper = begun()
    _, first, reason = answered(talk, [user("AB")])
    assert reason == "length"
    asked = Letters().encode("AB|")
    ids = run_of(asked, 6)
    assert first == Letters().decode(ids)
    kept, second, _ = answered(talk, [user("AB"), assistant(first), user("C")])
    assert kept == 9
    new = Letters().encode("|C|")
    assert second == Letters().decode(run_of([*asked, *ids, *new], 6))
    # The last token of the first answer was not run yet: its logits were not needed.
    assert prefills(paper) == [(asked, 0), ([ids[-1], *new], 8)]


def test_an_answer_is_computed_again_from_where_its_text_has_other_ids() -> None:
    talk, paper = begun(Letters(capitals=True))
    _, first, _ = answered(talk, [user("AB")])
    ids = talk.generator.get_sequence()
    kept, second, _ = answered(talk, [user("AB"), assistant(first), user("C")])
    wanted = Letters().encode(f"AB|{first.upper()}|C|")
    assert 3 < kept < 9
    assert ids[:kept] == wanted[:kept] != ids[: kept + 1]
    assert second == Letters().decode(run_of(wanted, 6))
    assert prefills(paper)[1] == (wanted[kept - 1 :], kept - 1)


def test_tools_are_given_to_the_template() -> None:
    talk, _ = begun()
    assert talk.ask([user("AB")], tools=[{"content": "TOOL"}]) == 0
    assert talk.generator.get_sequence() == Letters().encode("TOOL|AB|")
    assert talk.ask([user("AB")]) == 0, "without them the prompt is another one"


def test_a_template_that_forgets_keeps_what_the_prompts_begin_with_alike() -> None:
    talk, paper = begun(Letters(forget=True))
    _, first, _ = answered(talk, [user("AB")])
    kept, second, _ = answered(talk, [user("AB"), assistant(first), user("C")])
    wanted = Letters().encode("AB|C|")
    assert kept == 3
    assert talk.generator.get_sequence()[:5] == wanted
    assert second == Letters().decode(run_of(wanted, 6))
    assert prefills(paper)[1] == (wanted[2:], 2), "the last token that is kept is run again, for its logits"


def test_other_messages_are_another_conversation() -> None:
    talk, _ = begun()
    answered(talk, [user("AB")])
    assert answered(talk, [user("XY")]) == (0, Letters().decode(run_of(Letters().encode("XY|"), 6)), "length")


def test_conversations_that_begin_alike_share_what_was_computed() -> None:
    talk, paper = begun()
    answered(talk, [user("-A")])
    answered(talk, [user("XYZUV")])
    kept, text, _ = answered(talk, [user("XYZUW")])
    wanted = Letters().encode("XYZUW|")
    assert (kept, text) == (4, Letters().decode(run_of(wanted, 6)))
    assert prefills(paper)[2] == (wanted[3:], 3)


def test_the_same_messages_are_answered_again() -> None:
    talk, _ = begun()
    first = answered(talk, [user("AB")])
    assert answered(talk, [user("AB")]) == (3, *first[1:])


def test_an_end_of_sequence_is_no_part_of_the_text_or_the_sequence() -> None:
    talk, _ = begun(decoder={"eos_at": 5})
    _, first, reason = answered(talk, [user("AB")], None)
    ids = run_of(Letters().encode("AB|"), 2)
    assert (first, reason) == (Letters().decode(ids), "stop")
    kept, *_ = answered(talk, [user("AB"), assistant(first), user("C")])
    assert kept == 5
    assert talk.generator.get_sequence()[:8] == [*Letters().encode("AB|"), *ids, *Letters().encode("|C|")]


def test_a_conversation_that_is_full_says_so_and_goes_on_with_what_fits() -> None:
    talk, _ = begun(max_length=12)
    _, first, reason = answered(talk, [user("AB")], None)
    assert (len(first), reason) == (9, "length")
    with pytest.raises(PromptError, match="max_length is 12"):
        talk.ask([user("AB"), assistant(first), user("C")])
    kept, again, _ = answered(talk, [user("AB")], 3)
    assert (kept, again) == (3, first[:3])


def test_a_message_that_is_taken_back_leaves_the_ids_of_the_answers_before_it() -> None:
    talk, _ = begun()
    _, first, _ = answered(talk, [user("AB")])
    messages = [user("AB"), assistant(first), user("C")]
    _, second, _ = answered(talk, messages)
    kept, again, _ = answered(talk, messages)
    assert (kept, again) == (3 + 6 + 3, second)


def test_an_answer_that_is_cancelled_is_part_of_the_conversation() -> None:
    talk, paper = begun()
    talk.ask([user("AB")])
    text: list[str] = []

    reached = asyncio.Event()

    def show(_token: int, delta: str) -> None:
        text.append(delta)
        if len(text) == 4:
            paper.decoders[0].gate = asyncio.Event()
            reached.set()

    async def stopped() -> None:
        answer = asyncio.ensure_future(talk.answer(None, show))
        await reached.wait()
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        paper.decoders[0].gate = None

    asyncio.run(stopped())
    first = "".join(text)
    count = talk.generator.token_count()
    assert first == Letters().decode(run_of(Letters().encode("AB|"), count - 3))
    kept, second, _ = answered(talk, [user("AB"), assistant(first), user("C")])
    assert kept == count
    sequence = [*Letters().encode("AB|"), *run_of(Letters().encode("AB|"), count - 3), *Letters().encode("|C|")]
    assert second == Letters().decode(run_of(sequence, 6))


def test_a_stop_string_ends_an_answer_and_the_next_turn_goes_on_before_it() -> None:
    asked = Letters().encode("AB|")
    text = Letters().decode(run_of(asked, 6))
    generator, paper = made(tokenizer=Letters(), stop_strings=[text[3:5]])
    talk = Conversation(prompts(Letters(), paper), generator, [text[3:5]])
    _, first, reason = answered(talk, [user("AB")])
    assert (first, reason) == (text[:3], "stop")
    kept, second, _ = answered(talk, [user("AB"), assistant("Q"), user("C")])
    assert kept == len(asked)
    assert second == Letters().decode(run_of([*asked, *Letters().encode("Q|C|")], 6))
    assert prefills(paper)[-1] == (Letters().encode("|Q|C|"), len(asked) - 1)


def test_an_answer_that_a_stop_string_ended_goes_on_with_its_text() -> None:
    """The sequence has tokens of the stop string behind it, which the next prompt has not."""
    asked = Letters().encode("AB|")
    text = Letters().decode(run_of(asked, 6))
    generator, paper = made(tokenizer=Letters(), stop_strings=[text[3:5]])
    talk = Conversation(prompts(Letters(), paper), generator, [text[3:5]])
    _, first, _ = answered(talk, [user("AB")])
    _, second, _ = answered(talk, [user("AB"), assistant(first), user("C")])
    whole = Letters().encode(f"AB|{first}|C|")
    assert generator.get_sequence()[: len(whole)] == whole
    assert second == Letters().decode(run_of(whole, 6))


def test_an_answer_goes_on_from_its_first_tokens() -> None:
    talk, _ = begun()
    _, whole, _ = answered(talk, [user("ab")])
    prompt = talk.generator.get_sequence()[:3]
    ids = [ord(letter) - 32 for letter in whole]
    for taken in (0, 6, 2):
        again, paper = begun()
        _, text, reason = answered(again, [user("ab")], given=ids[:taken])
        assert (text, reason) == (whole[taken:], "length")
        assert again.generator.get_sequence() == [*prompt, *ids]
    kept, *_ = answered(again, [user("ab"), assistant(whole), user("c")])
    assert kept == 3 + 6, "the answer with its given tokens is part of the conversation"
    assert len(prefills(paper)) == 2
