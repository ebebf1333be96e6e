"""The harness' model `capstan` over a page made of paper: its requests, their order, and its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from capstan.errors import OptionError
from capstan.evaluation import CapstanLM
from capstan.evaluation.place import model_place

MODEL = str(Path(__file__).parents[1] / "fixtures" / "nano-llama")
BEGIN = 1
CONTEXT_LENGTH = 12


def scored(context: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """A paper model's log probabilities, each of all tokens before it."""
    whole = [*context, *tokens]
    return [-1 - (sum(whole[: place + 1]) * 31 + place) % 97 / 97 for place in range(len(context), len(whole))]


class PaperPages:
    """A page whose tokens are characters, behind the beginning of a sequence if `begins`."""

    def __init__(self, begins: bool = False) -> None:
        self.begins = begins
        self.asked: list[dict[str, Any]] = []

    def everywhere(self, request: dict[str, Any]) -> list[Any]:
        about = {"context_length": CONTEXT_LENGTH, "begin_token_id": BEGIN, "device": "webgpu", "adapter": "paper"}
        return [about]

    def run(self, batches: Sequence[Sequence[dict[str, Any]]], done: Callable[[int], object] = lambda _: None) -> Any:
        results = []
        for batch in batches:
            results += [self.answer(request) for request in batch]
            done(len(batch))
        return results

    def answer(self, request: dict[str, Any]) -> Any:
        self.asked.append(request)
        if request["kind"] == "score":
            return {"sequences": [self.score(**each) for each in request["sequences"]]}
        if request["kind"] == "generate":
            return {"text": f"{len(request['prompt_ids'])} tokens"}
        text: str = request.get("text") or ""
        if request["action"] == "template":
            text = "".join(f"<{each['role']}>{each['content']}</s>" for each in request["messages"])
            text += "<assistant>" * request["add_generation_prompt"]
        return {"text": text, "ids": [BEGIN] * self.begins + [BEGIN if each == "^" else ord(each) for each in text]}

    def score(self, context_ids: list[int], token_ids: list[int]) -> dict[str, Any]:
        values = scored(context_ids, token_ids)
        return {"log_probabilities": values, "greedy": [value > -1.9 for value in values]}

    def close(self) -> None:
        self.asked.append({"kind": "close", "device": "webgpu"})

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [request for request in self.asked if request["kind"] == kind]


def made(pages: PaperPages | None = None, **options: Any) -> tuple[CapstanLM, PaperPages]:
    pages = pages or PaperPages()
    return CapstanLM(MODEL, pages=pages, **options), pages


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, place) for place, each in enumerate(arguments)]


def ids(text: str) -> list[int]:
    return [ord(each) for each in text]


def test_the_harness_finds_the_model_by_its_name() -> None:
    assert get_model("capstan") is CapstanLM


def test_log_likelihoods_are_those_of_each_pair_alone_in_the_order_of_the_requests() -> None:
    lm, pages = made()
    pairs = [("ab", "cd"), ("b", "x"), ("ab", "c"), ("ab", "cd"), ("ab ", "e"), ("", "q"), ("abc", "")]
    found = lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    alone = [("ab", "cd"), ("b", "x"), ("ab", "c"), ("ab", "cd"), ("ab", " e")]
    wanted = [scored(ids(context), ids(tokens)) for context, tokens in alone] + [scored([BEGIN], ids("q")), []]
    assert [value for value, _ in found] == pytest.approx([sum(each) for each in wanted])
    assert [greedy for _, greedy in found] == [all(value > -1.9 for value in each) for each in wanted]
    [request] = pages.of_kind("score")
    asked = [(each["context_ids"], each["token_ids"]) for each in request["sequences"]]
    assert len(asked) == 5, "a pair that is asked twice is scored once, one without a token not at all"
    contexts = [context for context, _ in asked]
    assert contexts == [[BEGIN], ids("ab"), ids("ab"), ids("ab"), ids("b")], "those that begin alike follow one another"


def test_what_is_too_long_loses_its_beginning_which_is_told(caplog: pytest.LogCaptureFixture) -> None:
    lm, _ = made(max_length=6)
    with caplog.at_level(logging.WARNING):
        [(value, _), (all_scored, _)] = lm.loglikelihood(
            requests("loglikelihood", ("abcdef", "gh"), ("a", "bcdefghi")), disable_tqdm=True
        )
    assert value == pytest.approx(sum(scored(ids("cdef"), ids("gh"))))
    assert all_scored == pytest.approx(sum(scored(ids("d"), ids("efghi"))))
    assert "2 sequences are longer than max_length 6 allows and lost their beginnings, 5 tokens in all" in caplog.text


def test_a_long_text_is_scored_in_windows_that_score_each_token_once() -> None:
    lm, pages = made(max_length=6)
    text = "abcdefghijklm"
    [value, short] = lm.loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("xyz",)), disable_tqdm=True)
    windows = [([BEGIN], "abcde"), (ids("e"), "fghij"), (ids("hij"), "klm")]
    assert value == pytest.approx(sum(sum(scored(context, ids(tokens))) for context, tokens in windows))
    assert short == pytest.approx(sum(scored([BEGIN], ids("xyz"))))
    asked = [each for request in pages.of_kind("score") for each in request["sequences"]]
    assert sum(len(each["token_ids"]) for each in asked) == len(text) + 3
    assert max(len(each["token_ids"]) + len(each["context_ids"]) for each in asked) == 6


def test_the_beginning_of_a_sequence_is_there_once() -> None:
    lm, _ = made(PaperPages(begins=True))
    assert lm.tok_encode("ab") == [BEGIN, *ids("ab")]
    assert lm.tok_encode("^ab") == [BEGIN, *ids("ab")], "a template may put it there, too"
    assert lm.tok_encode("ab", add_special_tokens=False) == ids("ab")
    [(value, _)] = lm.loglikelihood(requests("loglikelihood", ("", "q")), disable_tqdm=True)
    assert value == pytest.approx(sum(scored([BEGIN], ids("q"))))
    plain, _ = made()
    assert plain.tok_encode("^ab") == [BEGIN, *ids("ab")]


def test_texts_are_written_with_the_options_of_the_task(caplog: pytest.LogCaptureFixture) -> None:
    lm, pages = made()
    sampling: dict[str, Any] = {
        "until": ["\n", ""],
        "max_gen_toks": 4,
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
    }
    greedy: dict[str, Any] = {"until": "b", "max_gen_toks": 2, "do_sample": False, "temperature": 0.7}
    with caplog.at_level(logging.WARNING):
        texts = lm.generate_until(
            requests("generate_until", ("abc", greedy), ("abcdefghijk", sampling), ("", greedy)), disable_tqdm=True
        )
    assert texts == ["3 tokens", "8 tokens", "1 tokens"]
    longest, first, empty = pages.of_kind("generate")
    assert (longest["prompt_ids"], longest["max_new_tokens"]) == (ids("defghijk"), 4)
    options = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "random_seed": 3, "stop_strings": ["\n"]}
    assert longest["search"] == options
    assert first["search"] == {"do_sample": False, "stop_strings": ["b"]}
    assert empty["prompt_ids"] == [BEGIN]
    assert "1 sequences are longer than max_length 12 allows" in caplog.text
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_beams": 4}, "has num_beams"),
        ({"max_gen_toks": 12}, "max_gen_toks is 12"),
    )
    for wrong, told in refused:
        with pytest.raises(OptionError, match=told):
            lm.generate_until(requests("generate_until", ("a", wrong)), disable_tqdm=True)


def test_conversations_are_rendered_by_the_models_template() -> None:
    lm, _ = made()
    talk = [{"role": "user", "content": "hi"}]
    assert lm.apply_chat_template(talk) == "<user>hi</s><assistant>"
    begun = [*talk, {"role": "assistant", "content": "The answer is "}]
    assert lm.apply_chat_template(begun, add_generation_prompt=False) == "<user>hi</s><assistant>The answer is"


def test_each_answer_is_kept_for_the_harness_cache() -> None:
    kept: list[tuple[str, Any, Any]] = []

    class Hook:
        def add_partial(self, *each: Any) -> None:
            kept.append(each)

    lm, _ = made()
    lm.set_cache_hook(Hook())
    [answer] = lm.loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)
    [rolled] = lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("ab",)), disable_tqdm=True)
    [text] = lm.generate_until(requests("generate_until", ("ab", {"max_gen_toks": 2})), disable_tqdm=True)
    assert kept == [
        ("loglikelihood", ("a", "b"), answer),
        ("loglikelihood_rolling", ("ab",), rolled),
        ("generate_until", ("ab", {"max_gen_toks": 2}), text),
    ]
    assert lm.tokenizer_name.endswith("__tests__fixtures__nano-llama__main")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pretrained": "x"}, "pretrained: no such argument of the model capstan; there are model, site"),
        ({"batch_size": 8}, "batch_size is 8: a page takes one sequence after another"),
        ({"device": "cuda"}, "device is cuda; give --device webgpu, wasm or auto"),
        ({"browsers": 0}, "browsers is 0; it must be a whole number of at least 1"),
        ({"max_length": 13}, "max_length is 13; take 2 to the model's context_length 12"),
        ({"max_length": 1}, "max_length is 1; take 2 to"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        made(**options)


def test_the_harness_default_device_is_the_pages_own() -> None:
    lm, pages = made(device="cuda:0")
    lm.loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)
    assert {request["device"] for request in pages.asked} == {"webgpu"}


def test_a_model_is_a_folder_a_file_an_address_or_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.GGUF"
    file.touch()
    assert model_place(str(tmp_path)) == ("/models/evaluated/", {"evaluated": tmp_path.resolve()})
    assert model_place(str(file)) == ("/models/small.GGUF", {"small.GGUF": file})
    assert model_place("https://models.test/a/") == ("https://models.test/a/", {})
    monkeypatch.setenv("CAPSTAN_HUB", "https://hub.test")
    monkeypatch.setenv("CAPSTAN_HUB_TOKEN", "secret")
    place = {"repository": "owner/name:a.gguf", "hub": "https://hub.test", "revision": "v1", "token": "secret"}
    assert model_place("owner/name:a.gguf", revision="v1") == (place, {})
    for wrong in ("no-such-model", str(tmp_path / "missing"), "/tmp/x y/z"):
        with pytest.raises(OptionError, match="is no model: give a folder"):
            model_place(wrong)
