"""The check for plain words finds clumsy sentences in each language, and spares others."""

from __future__ import annotations

import pytest

from buildtools.words import Phrase, phrases


@pytest.mark.parametrize(
    "sentence",
    [
        "Of a wait that is cancelled none are left.",
        "What a graph needs.",
        "Where a run of tokens ends, for its caches to come out as they were",
        "Whose turn it was.",
        "The names that are looked for.",
        "Rows are copied as the others are.",
        "The buffer (`a.b.`) that it is read from",
        "Each step, and what it does!",
        "Caches are computed anew there.",
        "Whoever calls it holds the lock.",
        "Who catches it catches the four below it.",
        "The second column is the base class: who catches it catches all.",
        "Bytes by who made them.",
        "A missing directory is told of later.",
        "The run tells of each token.",
    ],
)
def test_clumsy_sentences_are_found(sentence: str) -> None:
    assert [phrase.text for phrase in phrases("a.md", sentence)] == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "What does the page need?",
        "The decoder goes on.",
        "Every version from 0.28 on.",
        "Press it to log in.",
        "A size turns it on.",
        "The value is read from `x.of`.",
        "Who made it?",
        "The user who started it is told the reason.",
        "Offsets begin a row; whatever follows is padding, e.g. of zeros here.",
    ],
)
def test_plain_sentences_are_spared(sentence: str) -> None:
    assert phrases("a.md", sentence) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Memory that nobody holds.",
        "The loss is told once.",
        "Lent buffers stay.",
        "The reason is said once.",
        "Room for so many rows.",
    ],
)
def test_private_words_are_found_in_the_product_alone(sentence: str) -> None:
    assert [phrase.text for phrase in phrases("py_src/a.py", f"# {sentence}\n")] == [sentence]
    assert phrases("tests/a.py", f"# {sentence}\n") == []


def test_each_sentence_of_a_python_file_is_told_with_its_line() -> None:
    text = (
        '"""A module.\n\nWhat it is for.\n"""\n\n'
        "# Of two comments\n# one is joined.\nx = 'What a string is'  # noqa: E501\n\n\n"
        'def f():\n    """First. What\n    follows."""\n    y = 1  # Where y is\n'
        'x = 2\n"""What x is."""\n'
    )
    assert phrases("a.py", text) == [
        Phrase(3, "What it is for."),
        Phrase(6, "Of two comments one is joined."),
        Phrase(12, "What follows."),
        Phrase(14, "Where y is"),
        Phrase(16, "What x is."),
    ]


@pytest.mark.parametrize("name", ["a.ts", "a.wgsl", "a.mjs"])
def test_comments_of_scripts_are_read_and_strings_are_not(name: str) -> None:
    text = (
        'const a = "// What a string is";\n/**\n * Adds.\n *\n * Of both the sum.\n */\n'
        "// Where it\n// ends.\nlet b; // Whose\n"
    )
    assert phrases(name, text) == [
        Phrase(5, "Of both the sum."),
        Phrase(7, "Where it ends."),
        Phrase(9, "Whose"),
    ]


def test_items_and_cells_of_a_document_are_sentences_and_code_and_tables_of_results_are_not() -> None:
    text = (
        "# What this is\n\n- What a\n  item is\n- One more\n\n| name | Of what |\n| --- | --- |\n\n"
        "```sh\nWhat is code\n```\n\n<!-- speed -->\nWhat is generated\n<!-- /speed -->\n"
    )
    assert phrases("a.md", text) == [Phrase(3, "What a item is"), Phrase(7, "Of what")]
