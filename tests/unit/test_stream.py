"""Ids to text: whole characters only, nothing lost."""

from __future__ import annotations

import random
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import partial

from capstan.text.stream import StoppingStream, TextStream

SPECIAL = 300


def bytes_to_text(ids: Sequence[int]) -> str:
    """A byte-level decoder: an id is a byte, special tokens have no text."""
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


def joined(tokens: Sequence[bytes], ids: Sequence[int]) -> str:
    return b"".join(tokens[token] for token in ids).decode("utf-8", "replace")


def words_to_text(ids: Sequence[int]) -> str:
    """A SentencePiece-like decoder: each word begins with a space, the first of a text loses it."""
    words = ["▁one", "▁two", "s", "▁three", ",", "<s>"]
    return "".join(words[token] for token in ids if token != 5).replace("▁", " ").removeprefix(" ")


def test_a_character_is_given_out_when_its_last_byte_comes() -> None:
    stream = TextStream(bytes_to_text)
    assert [stream.push(byte) for byte in "é🙂x".encode()] == ["", "é", "", "", "", "🙂", "x"]
    assert stream.flush() == ""


def test_flush_gives_out_an_incomplete_character() -> None:
    stream = TextStream(bytes_to_text)
    assert [stream.push(byte) for byte in "🙂".encode()[:2]] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(65) == "A"


def test_a_space_between_words_is_kept() -> None:
    stream = TextStream(words_to_text)
    assert [stream.push(token) for token in [0, 1, 2, 4, 3]] == ["one", " two", "s", ",", " three"]


def test_a_special_token_between_words_does_not_eat_the_space() -> None:
    stream = TextStream(words_to_text)
    assert [stream.push(token) for token in [5, 0, 5, 5, 1]] == ["", "one", "", "", " two"]


def test_the_pieces_of_any_bytes_joined_are_the_whole_text() -> None:
    draw = random.Random(1)
    for _ in range(300):
        characters = "".join(draw.choices("ab é\u00ff漢🙂\ufffd", k=30)).encode()
        ids = [draw.randrange(256) if draw.random() < 0.2 else byte for byte in characters]
        ids = [SPECIAL if draw.random() < 0.1 else token for token in ids]
        stream = TextStream(bytes_to_text)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.flush() == bytes_to_text(ids)


def test_valid_text_never_shows_a_replacement_character() -> None:
    stream = TextStream(bytes_to_text)
    pieces = [stream.push(byte) for byte in ("日本語🙂" * 50).encode()]
    assert "".join(pieces) == "日本語🙂" * 50
    assert not any("\ufffd" in piece for piece in pieces)


def test_each_token_gives_all_characters_that_it_completes() -> None:
    """Tokens of one to five bytes, wherever they cut characters: the pieces are an incremental decoder's."""
    draw = random.Random(3)
    for text in ("日本語 🙂🚀 Ελλ naïve " * 9, "語" * 300, "🙂" * 200):
        for longest in (2, 4, 5):
            data, tokens = text.encode(), []
            while data:
                size = draw.randint(1, longest) if longest < 4 else longest
                tokens.append(data[:size])
                data = data[size:]
            decoder = getincrementaldecoder("utf-8")()
            stream = TextStream(partial(joined, tokens))
            assert [stream.push(i) for i in range(len(tokens))] == [decoder.decode(token) for token in tokens]
            assert stream.flush() == ""


def test_the_work_for_one_more_token_is_bounded() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes_to_text(ids)

    stream = TextStream(decode)
    draw = random.Random(2)
    for _ in range(2000):
        stream.push(draw.choice([65, 0xC3, SPECIAL]))
    for _ in range(500):
        stream.push(SPECIAL)
    for _ in range(500):
        stream.push(0xF0)
    assert longest <= 140


def test_text_ends_before_the_first_stop_string_however_the_tokens_cut_it() -> None:
    """A token is one to three letters, or a byte of a character."""
    tokens = ["a", "b", "ab", "ba", "aab", "bbb", "é"]
    draw = random.Random(5)
    stopped = 0
    for _ in range(2000):
        ids = draw.choices(range(len(tokens)), k=draw.randint(1, 12))
        stops = ["".join(draw.choices("ab", k=draw.randint(2, 5))) for _ in range(draw.randint(1, 3))]
        stream = StoppingStream(lambda given: "".join(tokens[token] for token in given), stops)
        shown, ended = "", ""
        for count, token in enumerate(ids, 1):
            text = "".join(tokens[each] for each in ids[:count])
            shown += stream.push(token)
            assert text.startswith(shown)
            if any(stop in text for stop in stops):
                ended = text
                break
            assert stream.stopped is None
        shown += stream.flush()
        assert stream.text == shown
        if ended:
            stopped += 1
            place = min(ended.find(stop) for stop in stops if stop in ended)
            assert (shown, stream.push(0)) == (ended[:place], "")
            assert ended[place:].startswith(stream.stopped or "-")
        else:
            assert shown == "".join(tokens[token] for token in ids)
    assert 500 < stopped < 1900


def test_what_only_looked_like_a_stop_string_is_given_out() -> None:
    stream = StoppingStream(bytes_to_text, ["STOP", "é"])
    assert [stream.push(byte) for byte in b"aSTSTO"] == ["a", "", "", "ST", "", ""]
    assert stream.flush() == "STO"
