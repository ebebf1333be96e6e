"""The second turn of a chat has the ids of the whole rendered text, and computes nothing of the first again, for
tokenizers that treat the beginning of a text in their own ways. The ids are transformers'."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from capstan import OptionError, Tokenizer
from capstan.generation.chat_prompt import ChatPrompts
from capstan.generation.conversation import Conversation
from capstan.local.rust_tokenizer import LocalBackend
from capstan.text.stream import StoppingStream, TextStream
from tests.looped import looped
from tests.transformers_chats import ASKED, TEMPLATES, TOKENIZERS, answers
from tests.unit.paper_model import made

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class Scripted:
    """A generator whose next tokens are given."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.coming: list[int] = []
        self.finish_reason = "stop"

    def get_sequence(self) -> list[int]:
        return list(self.ids)

    def token_count(self) -> int:
        return len(self.ids)

    def rewind_to(self, length: int) -> None:
        del self.ids[length:]

    def append_tokens(self, ids: Sequence[int]) -> None:
        self.ids += ids

    def is_done(self) -> bool:
        return not self.coming

    async def generate_next_token_async(self) -> int:
        self.ids.append(self.coming.pop(0))
        return self.ids[-1]


def tell(said: list[str], _token: int, text: str) -> None:
    said.append(text)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def tokenizer_of(name: str, template: str = "") -> Tokenizer:
    return Tokenizer.from_files(LocalBackend, json.dumps(TOKENIZERS[name]), json.dumps(SPECIAL), template)


@looped("name", TOKENIZERS)
def test_a_second_turn_has_the_ids_of_the_whole_text_and_keeps_all_of_the_first(name: str) -> None:
    for template, wanted in answers()["turns"][name].items():
        generator: Any = Scripted()
        prompts: Any = ChatPrompts(tokenizer_of(name, TEMPLATES[template]), generator)
        talk = Conversation(prompts, generator)
        assert talk.ask([message("user", ASKED[0])]) == 0
        assert generator.ids == wanted["first"], template
        generator.coming = list(wanted["answer"])
        said: list[str] = []
        asyncio.run(talk.answer(None, partial(tell, said)))
        assert "".join(said) == wanted["said"], template
        turns = [message("user", ASKED[0]), message("assistant", "".join(said)), message("user", ASKED[1])]
        kept = talk.ask(turns)
        assert generator.ids == wanted["second"], template
        assert kept == len(wanted["first"]) + len(wanted["answer"]), template


@looped("name", TOKENIZERS)
def test_the_text_of_a_continuation_is_what_it_adds_to_the_text_before(name: str) -> None:
    """Wherever a text is cut, behind special tokens and without anything before it."""
    tokenizer = tokenizer_of(name)
    for text in ("<s>Hi, who is it? day", "Hi</s><s></s> day</s>day  Hi", "<s>" * 70 + " day"):
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        for cut in range(len(ids)):
            stream = TextStream(tokenizer.decode, ids[:cut])
            pieces = [stream.push(token) for token in ids[cut:]]
            before = tokenizer.decode(ids[:cut])
            assert before + "".join(pieces) + stream.flush() == whole, (text[-30:], cut)


def test_a_character_that_the_prompt_begins_is_given_out_whole() -> None:
    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    data = "aé🙂x\ufffdy".encode()
    for cut in (*range(9), 11):
        stream = TextStream(decode, [*data[:cut]])
        said = "".join(map(stream.push, data[cut:])) + stream.flush()
        whole = decode(data[:cut]).rstrip("\ufffd") if cut != 11 else decode(data[:cut])
        assert whole + said == data.decode(), cut


def test_a_stop_string_may_begin_with_the_space_before_the_first_word() -> None:
    tokenizer = tokenizer_of("prepend")
    prompt, ids = tokenizer.encode("Hi"), tokenizer.encode("Hi day")
    stream = StoppingStream(tokenizer.decode, [" day"], prompt)
    assert ([stream.push(token) for token in ids[len(prompt) :]], stream.stopped) == ([""], " day")


@looped("name", TOKENIZERS)
def test_a_stop_string_with_a_special_token_is_refused_and_any_text_taken(name: str) -> None:
    tokenizer = tokenizer_of(name)
    space = "▁" if name.startswith(("prepend", "metaspace")) else "Ġ"
    assert tokenizer.encode(" ")[-1] == tokenizer.to_token_id(space), "a token that is decoded to nothing when alone"
    for text in ("</s>", "</s> day", "Hi</s>", "Hi</s>day", " </s>"):
        with pytest.raises(
            OptionError, match=r"stop_strings has '.*' with the special tokens \[2\], which have no text"
        ):
            made(tokenizer=tokenizer, stop_strings=["day", text])
    made(tokenizer=tokenizer, stop_strings=[" ", "  day", "</", "s>", "Hi", "\n", "é"])
    tokenizer.update_options(skip_special_tokens=False)
    made(tokenizer=tokenizer, stop_strings=["</s> day"])
