"""The page's half of a fleet on CPython: what runs together, what is reused, and the errors of items."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from capstan import Generator, GeneratorParams, Tokenizer
from capstan.generation.row_pool import RowPool
from capstan_host.fleet import in_page
from tests import oracle

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
GREEDY: dict[str, Any] = {"do_sample": False}


@pytest.fixture(autouse=True)
def kept() -> Iterator[Any]:
    yield in_page.kept
    for each in (in_page.kept.models, in_page.kept.pools, in_page.kept.scripts):
        each.clear()


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Answers the items of a job in their order."""

    def answers(job: dict[str, Any], *items: Any, folder: Path = LLAMA) -> list[dict[str, Any]]:
        runner.run(in_page.answer({"rows": 4, "max_length": 64, "model": {}, **job}, [*items], str(folder)))
        lines = [json.loads(line[1:]) for line in capsys.readouterr().out.split("\n") if line.startswith(in_page.MARK)]
        return sorted(lines, key=lambda line: line["number"])

    with asyncio.Runner() as runner:
        yield answers


def test_pairs_that_begin_alike_share_a_run_and_bad_ones_fail_alone(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[int] = []
    append = Generator.append_tokens

    def counted(self: Generator, tokens: list[int]) -> None:
        appended.append(len(tokens))
        append(self, tokens)

    monkeypatch.setattr(Generator, "append_tokens", counted)
    context = [*range(5, 25)]
    pairs: list[dict[str, Any]] = [
        {"context_ids": context, "token_ids": [30, 31]},
        {"context_ids": [7, 8], "token_ids": [9]},
        {"context_ids": context, "token_ids": [10**6]},
        {"context_ids": context, "token_ids": [40]},
        {"context": "", "text": ""},
        {"context_ids": [*range(5, 65)], "token_ids": [*range(65, 75)]},
        {"context_ids": context, "token_ids": [30]},
    ]
    found = ask({"kind": "loglikelihood"}, *pairs)
    assert [line["number"] for line in found if "error" in line] == [2, 4, 5]
    assert "no token after its context" in found[4]["error"]["message"]
    assert "max_length (64)" in found[5]["error"]["message"]
    assert sum(appended) == len(context) + 2, "each context runs once"
    alone = [ask({"kind": "loglikelihood"}, pairs[place])[0] for place in (0, 1, 3, 6)]
    assert [found[place]["result"] for place in (0, 1, 3, 6)] == [line["result"] for line in alone]


def test_a_script_may_print_and_return_anything_and_each_item_has_its_line(ask: Any) -> None:
    source = """
def run(item):
    print("no end of line", end="")
    return eval(item)
"""
    job = {"kind": "map", "script": source, "filename": "script.py"}
    found = ask(job, "1", "float('nan')", "{1}", "10**5000", "'\\ud800'", "print", "nest(10**5)", "2")
    assert [line["number"] for line in found] == [*range(8)]
    assert [line["number"] for line in found if "error" in line] == [2, 3, 5, 6]
    assert [found[place]["result"]["value"] for place in (0, 4, 7)] == [1, "\ud800", 2]


def test_stop_strings_end_rows_of_one_pool(ask: Any, kept: Any) -> None:
    prompts = [[5, 6, 7], [8, 9], [5, 6, 7, 8, 9]]
    job = {"kind": "generate", "max_new_tokens": 8}
    whole = ask({**job, "search": GREEDY}, *({"prompt_ids": each} for each in prompts))
    assert [line["result"]["token_ids"] for line in whole] == [oracle.greedy(LLAMA, each, 8) for each in prompts]
    texts = [line["result"]["text"] for line in whole]
    stop = texts[0][3:5]
    ended = ask({**job, "search": {**GREEDY, "stop_strings": [stop]}}, *({"prompt_ids": each} for each in prompts))
    assert [line["result"]["text"] for line in ended] == [text.split(stop)[0] for text in texts]
    assert ended[0]["result"]["finish_reason"] == "stop"
    assert len(kept.pools) == 1
    model = in_page.kept.models["model"]
    params = GeneratorParams(model)
    params.set_search_options(**GREEDY, max_length=64, stop_strings=[stop])
    with Generator(model, params) as alone:
        alone.append_tokens(prompts[0])
        ids = []
        while alone.finish_reason is None:
            alone.generate_next_token()
            ids += alone.get_next_tokens()
    assert ended[0]["result"]["token_ids"] == ids


def test_the_pools_of_the_last_two_option_sets_stay(ask: Any, kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[RowPool] = []
    held: list[Any] = []  # A sequence that is dropped leaves its pool, too.
    end = RowPool._end

    async def noted(self: RowPool) -> None:
        ended.append(self)
        await end(self)

    monkeypatch.setattr(RowPool, "_end", noted)

    def pool_of(penalty: float) -> RowPool:
        job = {"kind": "generate", "max_new_tokens": 2, "search": {**GREEDY, "repetition_penalty": penalty}}
        [line] = ask(job, {"prompt_ids": [5, 6]})
        assert "error" not in line
        held.append([*kept.pools.values()][-1])
        last: RowPool = held[-1][0]
        return last

    first, second = pool_of(1.0), pool_of(1.5)
    assert pool_of(1.0) is first
    third = pool_of(2.0)
    assert ended == [second]
    assert second.decoder is None
    assert [pool for pool, _ in kept.pools.values()] == [first, third]


def test_facts_ids_and_conversations_are_the_models(ask: Any) -> None:
    [about] = ask({"kind": "about"}, None)
    assert about["result"]["value"]["context_length"] == 512
    qwen = FIXTURES / "nano-qwen2"
    in_page.kept.models.clear()
    talk = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}
    [text] = ask({"kind": "template"}, talk, folder=qwen)
    assert text["result"]["text"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    [ids] = ask({"kind": "encode"}, "<|im_start|>a", folder=qwen)
    assert ids["result"]["token_ids"][0] == 1
    [special, text] = ask({"kind": "encode"}, "<|im_end|>", "a<|im_end|>", folder=qwen)
    assert [each["result"]["value"]["special"] for each in (special, text)] == [True, False]
    job = {"kind": "generate", "max_new_tokens": 2, "search": {"stop_strings": ["<|im_end|>"]}}
    refused = ask(job, {"prompt_ids": [5]}, {"prompt_ids": [6]}, folder=qwen)
    assert ["give their ids as stop_token_ids" in each["error"]["message"] for each in refused] == [True, True]


def test_prompts_and_pairs_of_texts_begin_as_the_tokenizer_says(ask: Any) -> None:
    """The judge is the Rust tokenizer, whose post-processor puts bos before a text."""
    judge = tokenizers.Tokenizer.from_file(str(LLAMA / "tokenizer.json"))
    context, whole = (judge.encode(text).ids for text in ("def f(n):", "def f(n): return n"))
    assert whole[: len(context)] == context
    assert context[0] == 0

    [text, ids] = ask(
        {"kind": "generate", "max_new_tokens": 8, "search": GREEDY}, {"prompt": "def f(n):"}, {"prompt_ids": context}
    )
    assert text["result"]["token_ids"] == ids["result"]["token_ids"]
    assert text["result"]["prompt_tokens"] == len(context)

    [begun, marked] = ask({"kind": "encode"}, "def f(n):", "<s>def f(n):")
    assert begun["result"]["token_ids"] == marked["result"]["token_ids"] == context

    pairs = [
        {"context": "def f(n):", "text": " return n"},
        {"context_ids": context, "token_ids": whole[len(context) :]},
        {"context": "", "text": "def f(n): return n"},
        {"context_ids": whole[:1], "token_ids": whole[1:]},
    ]
    scored = [line["result"]["value"]["log_probability"] for line in ask({"kind": "loglikelihood"}, *pairs)]
    assert scored[0] == pytest.approx(scored[1])
    assert scored[2] == pytest.approx(scored[3])


def test_a_text_that_no_tokenizer_makes_short_enough_is_refused_before_one_tries(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Tokenizer.encode

    def tried(self: Tokenizer, text: str) -> list[int]:
        assert len(text) < 600_000, "the text was encoded"
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode", tried)
    long = "a " * 300_000
    said = [{"role": "user", "content": long}]
    told = "the prompt has 600000 characters; the model's context_length of 512 tokens holds at most 524288"
    for kind, item in (
        ("generate", {"prompt": long}),
        ("generate", {"messages": said}),
        ("loglikelihood", {"context": "a", "text": long[1:]}),
    ):
        [line] = ask({"kind": kind, "max_new_tokens": 2, "search": GREEDY}, item, folder=FIXTURES / "nano-qwen2")
        assert line["error"]["type"] == "PromptError"
        assert line["error"]["message"].startswith(told)
