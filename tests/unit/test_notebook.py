"""capstan.notebook: what is shown where IPython runs, and what is printed elsewhere."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capstan import Generator, GeneratorParams, Model, Tokenizer, notebook

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
PROMPT = [5, 6, 7, 8, 9]


class Shell:
    """IPython as far as it is used: notes what a cell's output was, change by change."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []
        self.display = SimpleNamespace(display=self.show)

    def get_ipython(self) -> Shell:
        return self

    def show(self, shown: Any, display_id: bool) -> SimpleNamespace:
        assert display_id
        output = [shown._repr_html_()]
        self.outputs.append(output)
        return SimpleNamespace(update=lambda changed: output.append(changed._repr_html_()))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell()
    monkeypatch.setitem(sys.modules, "IPython", made)
    return made


def answer(max_new_tokens: int | None) -> tuple[notebook.Answer, Tokenizer, str | None]:
    async def generate() -> tuple[notebook.Answer, Tokenizer, str | None]:
        model = await Model.load(str(LLAMA), progress=notebook.LoadProgress())
        tokenizer, params = Tokenizer(model), GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(PROMPT) + 12)
        async with Generator(model, params) as generator:
            generator.append_tokens(PROMPT)
            found = await notebook.stream(generator, tokenizer, max_new_tokens=max_new_tokens)
            return found, tokenizer, generator.finish_reason

    return asyncio.run(generate())


def text_of(html: str) -> str:
    found = re.search(r"<div[^>]*>(.*?)</div>", html, re.DOTALL)
    assert found
    return found[1]


def test_an_answer_grows_in_one_output_and_ends_with_its_timeline(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "UPDATE_MS", 0.0)
    found, tokenizer, reason = answer(None)
    assert (found.finish_reason, reason, len(found.token_ids)) == ("length", "length", 12)
    assert found.text == tokenizer.decode(found.token_ids)
    output = shell.outputs[-1]
    lengths = [len(text_of(html)) for html in output]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3
    assert ["<svg" in html for html in output] == [False] * (len(output) - 1) + [True]


def test_in_marimo_the_answer_replaces_the_output_of_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    output = SimpleNamespace(replace=lambda value: shown.append(value._repr_html_()))
    marimo = SimpleNamespace(running_in_notebook=lambda: True, output=output)
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    monkeypatch.setattr(notebook, "UPDATE_MS", 0.0)
    found, _, _ = answer(None)
    answers = [html for html in shown if "pre-wrap" in html]
    assert len({text_of(html) for html in answers}) > 3
    assert answers[-1] == found._repr_html_()
    assert "<svg" in answers[-1]


def test_outside_of_its_notebooks_marimo_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: False))
    found, _, _ = answer(None)
    assert capsys.readouterr().out.endswith(f"{found.text}\n")


def test_changes_are_shown_no_more_often_than_a_page_can_follow(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "UPDATE_MS", 1e9)
    answer(None)
    assert len(shell.outputs[-1]) == 2, "empty, and whole"


def test_an_answer_ends_after_as_many_tokens_as_were_asked_for() -> None:
    found, _, reason = answer(3)
    assert (len(found.token_ids), found.finish_reason, reason) == (3, "length", None)
    assert answer(0)[0].token_ids == []


def test_without_ipython_text_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    found, _, _ = answer(None)
    assert capsys.readouterr().out == f"{found.text}\n"


def test_what_a_page_would_take_for_markup_is_shown_as_text() -> None:
    found = notebook.Answer()
    found.text = "<script>alert(1)</script> & more"
    assert "<script>" not in found._repr_html_()
    assert text_of(found._repr_html_()) == "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more"
    progress = notebook.LoadProgress()
    progress("<b>.onnx.data", 1, 2)
    assert "<b>" not in progress._repr_html_()


def test_bars_fill_and_a_file_of_unknown_size_has_one_without_an_end(shell: Shell) -> None:
    progress = notebook.LoadProgress()
    for done in (0, 1_000_000, 4_000_000):
        progress("model.onnx.data", done, 4_000_000)
    progress("tokenizer.json", 500_000, 0)
    (output,) = shell.outputs
    assert 'value="0" max="4000000"' in output[0]
    assert 'value="4000000" max="4000000"' in output[-1]
    assert repr(progress) == "loading\nmodel.onnx.data: 4.0 of 4.0 MB\ntokenizer.json: 0.5 MB"
    assert "<progress></progress> tokenizer.json" in progress._repr_html_()


def test_the_bytes_of_the_weights_are_told_and_have_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    progress = notebook.LoadProgress()
    progress("weights", 0, 15_300_000)
    assert capsys.readouterr().out == "loading, 15.3 MB of weights\n"
    assert progress._repr_html_() == "<div>loading, 15.3 MB of weights</div>"


def test_without_ipython_a_file_is_told_once_when_it_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    progress = notebook.LoadProgress()
    for done in (0, 1_000_000, 4_000_000, 4_000_000):
        progress("model.onnx.data", done, 4_000_000)
    assert capsys.readouterr().out == "model.onnx.data: 4.0 of 4.0 MB\n"


def test_a_timeline_has_a_step_for_each_token_and_tells_its_rate() -> None:
    timeline = notebook.Timeline([100.0, 110.0, 120.0, 140.0])
    assert repr(timeline) == "4 tokens, the first after 100 ms, then 75.0 a second"
    steps = re.findall(r"H([\d.]+) V([\d.]+)", timeline._repr_html_())
    across = [float(x) for x, _ in steps][-4:]
    up = [float(y) for _, y in steps][-4:]
    assert across == sorted(across)
    assert up == sorted(up, reverse=True)
    assert (across[-1] - across[-2]) == pytest.approx(2 * (across[1] - across[0]), abs=0.2)
    assert repr(notebook.Timeline([20.0])) == "1 token, the first after 20 ms"
    assert notebook.Timeline()._repr_html_() == "<div>no tokens</div>"
