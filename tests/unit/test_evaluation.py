"""The harness' model `capstan` over a page made of paper: its requests, their order, and its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from capstan.errors import OptionError
from capstan.model_files.hub import HubRepository
from capstan_host.evaluation import CapstanLM, RequestError
from capstan_host.evaluation.runners import Pages, model_place
from capstan_host.fleet import Item
from capstan_host.fleet.browsers import Serving
from capstan_host.fleet.items import Entry
from capstan_host.headless.chromium import BrowserError

MODEL = str(Path(__file__).parents[1] / "fixtures" / "nano-llama")
BEGIN = 1
CONTEXT_LENGTH = 12


def scored(context: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """A paper model's log probabilities, each of all tokens before it."""
    whole = [*context, *tokens]
    return [-1 - (sum(whole[: place + 1]) * 31 + place) % 97 / 97 for place in range(len(context), len(whole))]


class PaperRunner:
    """A page whose tokens are characters, behind the beginning of a sequence if `begins`."""

    def __init__(self, begins: bool = False) -> None:
        self.begins = begins
        self.asked: list[tuple[dict[str, Any], list[Any]]] = []
        self.closed = False

    def run(self, job: dict[str, Any], inputs: Sequence[Any], size: int, done: Callable[[int], object]) -> list[Item]:
        self.asked.append((job, [*inputs]))
        done(len(inputs))
        return [Item(str(place), place, "", "", 1, **self.answer(job, each)) for place, each in enumerate(inputs)]

    def answer(self, job: dict[str, Any], given: Any) -> dict[str, Any]:
        match job["kind"]:
            case "about":
                facts = {"context_length": CONTEXT_LENGTH, "begin_token_id": BEGIN}
                return {"value": {**facts, "device": "webgpu", "adapter": "paper"}}
            case "loglikelihood":
                values = scored(given["context_ids"], given["token_ids"])
                return {"value": {"log_probability": sum(values), "greedy": all(value > -1.9 for value in values)}}
            case "generate":
                return {"text": f"{len(given['prompt_ids'])} tokens"}
            case "template":
                text = "".join(f"<{each['role']}>{each['content']}</s>" for each in given["messages"])
                return {"text": text + "<assistant>" * given["add_generation_prompt"]}
        ids = [BEGIN] * self.begins + [BEGIN if each == "^" else ord(each) for each in given]
        return {"token_ids": ids, "value": {"special": bool(given) and not given.strip("^")}}

    def close(self) -> None:
        self.closed = True

    def of_kind(self, kind: str) -> list[Any]:
        """The inputs of such jobs."""
        return [each for job, inputs in self.asked if job["kind"] == kind for each in inputs]

    def jobs(self, kind: str) -> list[tuple[dict[str, Any], list[Any]]]:
        return [asked for asked in self.asked if asked[0]["kind"] == kind]


def made(runner: PaperRunner | None = None, **options: Any) -> tuple[CapstanLM, PaperRunner]:
    runner = runner or PaperRunner()
    return CapstanLM(MODEL, runner=runner, **options), runner


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
    asked = [(each["context_ids"], each["token_ids"]) for each in pages.of_kind("loglikelihood")]
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
    asked = pages.of_kind("loglikelihood")
    assert sum(len(each["token_ids"]) for each in asked) == len(text) + 3
    assert max(len(each["token_ids"]) + len(each["context_ids"]) for each in asked) == 6


def test_the_beginning_of_a_sequence_is_there_once() -> None:
    lm, _ = made(PaperRunner(begins=True))
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
        "until": ["\n", "", "^", "^^"],
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
    (first, prompts), (second, longest) = pages.jobs("generate")
    assert prompts == [{"prompt_ids": ids("abc")}, {"prompt_ids": [BEGIN]}], "those of the same options, longest first"
    assert first["search"] == {"do_sample": False, "stop_strings": ["b"]}
    assert (first["max_new_tokens"], first["max_length"]) == (2, CONTEXT_LENGTH)
    assert longest == [{"prompt_ids": ids("defghijk")}]
    options = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "random_seed": 3}
    ends = {"stop_strings": ["\n", "^^"], "stop_token_ids": [BEGIN]}
    assert (second["search"], second["max_new_tokens"]) == ({**options, **ends}, 4)
    assert "1 sequences are longer than max_length 12 allows" in caplog.text
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_beams": 4}, "has num_beams"),
        ({"max_gen_toks": 2, "do_sample": True, "top_p": 7.0}, "top_p"),
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
        ({"pretrained": "x"}, "pretrained: the model capstan has no such argument; its arguments are model, site"),
        ({"batch_size": 0}, "batch_size is 0: give 1 to 32, the prompts that a page answers together"),
        ({"batch_size": "many"}, "batch_size is many: give 1 to 32"),
        ({"max_batch_size": 8}, "leave --max_batch_size out"),
        ({"timeout": 0}, "timeout is 0; it must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout is nan; it must be a number of seconds above 0"),
        ({"browsers": True}, "CapstanLM: browsers is True, of type bool; give an integer"),
        ({"device": "cuda"}, "device is 'cuda'; it must be one of 'webgpu', 'wasm', 'auto'"),
        ({"browsers": 0}, "browsers is 0; it must be a whole number of at least 1"),
        ({"max_length": 13}, "max_length is 13; it must be from 2 to the model's context_length 12"),
        ({"max_length": 1}, "max_length is 1; it must be from 2 to"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        made(**options)


def test_browsers_end_where_an_argument_does_not_fit_the_model() -> None:
    runner = PaperRunner()
    with pytest.raises(OptionError, match="max_length is 13"):
        made(runner, max_length=13)
    assert runner.closed


def test_the_harness_default_device_is_the_pages_own_and_a_batch_has_so_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Pages] = []

    def one_machine(pages: Pages) -> PaperRunner:
        opened.append(pages)
        return PaperRunner()

    monkeypatch.setattr("capstan_host.evaluation.lm_eval_model.OneMachine", one_machine)
    CapstanLM(MODEL, device="cuda:0", batch_size="auto", browsers=2)
    CapstanLM(MODEL, device="auto", batch_size="3", kv_cache_dtype="int8", timeout=5)
    assert opened == [
        Pages(MODEL, 2, None, 8, 3600.0, {"device": "auto", "max_length": 4096}),
        Pages(MODEL, 1, None, 3, 5, {"device": "auto", "kv_cache_dtype": "int8", "max_length": 4096}),
    ]


class PaperSlot:
    """A browser that dies of each second batch after half of it, and refuses the conversation of a user "nobody"."""

    batches = 0

    @classmethod
    def several(cls, serving: Serving) -> list[PaperSlot]:
        assert (serving.model, serving.site is None, serving.timeout) == (MODEL, False, 60)
        return [cls() for _ in range(serving.browsers)]

    async def answer(self, job: dict[str, Any], entries: Sequence[Entry], done: Callable[[int, Any], None]) -> None:
        self.batches += 1
        for place, entry in enumerate(entries):
            if self.batches % 2 == 0 and len(entries) > 1 and place == len(entries) // 2:
                raise BrowserError("the browser crashed or was closed")
            if job["kind"] == "template" and entry.input["messages"][0]["role"] == "nobody":
                done(place, {"number": place, "error": {"type": "ConfigError", "message": "no such role"}})
            else:
                done(place, {"number": place, "result": PaperRunner().answer(job, entry.input)})

    async def close(self) -> None: ...


@pytest.fixture(params=["one machine", "cluster"])
def browsers_of_paper(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[CapstanLM]:
    (tmp_path / "capstan").mkdir()
    (tmp_path / "capstan/harness.html").touch()
    monkeypatch.setattr("capstan_host.evaluation.runners.HeadlessSlot", PaperSlot)
    monkeypatch.setattr("capstan_host.fleet.worker.HeadlessSlot", PaperSlot)
    options: dict[str, Any] = {"site": str(tmp_path), "browsers": 2, "timeout": 60, "batch_size": 2}
    with ExitStack() as stack:
        if request.param == "cluster":
            given = {"n_workers": 2, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
            options["scheduler"] = stack.enter_context(LocalCluster(**given)).scheduler_address
        lm = CapstanLM(MODEL, **options)
        stack.callback(lm.close)
        yield lm


def test_browsers_that_die_are_replaced_on_one_machine_and_in_a_cluster(browsers_of_paper: CapstanLM) -> None:
    alone, _ = made()
    pairs = requests("loglikelihood", *(("ab" * (place % 5), f"cd{place}") for place in range(70)))
    assert browsers_of_paper.loglikelihood(pairs, True) == alone.loglikelihood(pairs, True)
    prompts = requests("generate_until", *(("ab" * (place % 5), {"max_gen_toks": 2}) for place in range(20)))
    assert browsers_of_paper.generate_until(prompts, True) == alone.generate_until(prompts, True)
    with pytest.raises(RequestError, match="ConfigError: no such role") as told:
        browsers_of_paper.apply_chat_template([{"role": "nobody", "content": "hi"}])
    assert told.value.type == "ConfigError"


def test_a_scheduler_that_does_not_answer_is_told() -> None:
    with pytest.raises(OptionError, match="scheduler is nonsense://x, which does not answer"):
        CapstanLM("/only/on/the/workers", scheduler="nonsense://x")


def test_a_model_is_a_folder_a_file_an_address_or_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.GGUF"
    file.touch()
    assert model_place(str(tmp_path)) == str(tmp_path)
    assert model_place(str(file)) == str(file)
    assert model_place("https://models.test/a/") == "https://models.test/a/"
    assert model_place("/only/on/the/workers", elsewhere=True) == "/only/on/the/workers"
    monkeypatch.setenv("CAPSTAN_HUB", "https://hub.test")
    monkeypatch.setenv("CAPSTAN_HUB_TOKEN", "secret")
    place = HubRepository("owner/name:a.gguf", "https://hub.test", "v1", "secret")
    assert model_place("owner/name:a.gguf", revision="v1") == place
    for wrong in ("no-such-model", str(tmp_path / "missing"), "/tmp/x y/z"):
        with pytest.raises(OptionError, match="is no model: give a folder"):
            model_place(wrong)
