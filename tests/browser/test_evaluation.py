"""lm-evaluation-harness over Capstan's page: its tables are those of the same model on onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import onnxruntime
import pytest
import tokenizers
from distributed import LocalCluster
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from capstan.model_files.genai_config_file import parse_genai_config
from capstan.model_files.gguf.header import GgmlType
from capstan_host.evaluation import TASKS, CapstanLM, RequestError
from capstan_host.site_server import SiteServer
from tests.gguf_models import make, write
from tests.llama_cpp import LlamaScores, install_llama_cpp

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = Path(__file__).parents[2]
LLAMA = FIXTURES / "nano-llama"
BOUND = 1e-4
"""Between two log probabilities of a token."""
LENGTH = 128
END = 1
"""The token that ends a sequence."""


class OtherLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """A model on another engine, which does what CapstanLM promises; the tokenizer is nano-llama's."""

    def __init__(self, begin: int, length: int) -> None:
        super().__init__()
        self.words = tokenizers.Tokenizer.from_file(str(LLAMA / "tokenizer.json"))
        self.begin, self.length = begin, length
        self.tokens = 0
        self.margins: dict[Any, float] = {}
        """By how much the least certain token of a sequence is above all others, or below one, where that is told."""

    @property
    def eot_token_id(self) -> int:
        return self.begin

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return list(self.words.encode(string, add_special_tokens=add_special_tokens is not False).ids)

    def cut(self, context: list[int], tokens: list[int]) -> tuple[list[int], list[int]]:
        whole = [*context, *tokens][-self.length :]
        scored = min(len(tokens), len(whole) - 1)
        self.tokens += scored
        return whole[:-scored], whole[-scored:]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.begin, self.length - 1, 1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(value for value, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def prompt(self, context: str, options: dict[str, Any]) -> list[int]:
        return self.tok_encode(context)[-(self.length - options["max_gen_toks"]) :]

    def text(self, ids: Sequence[int], options: dict[str, Any]) -> str:
        text = self.words.decode(ids)
        return min((text.split(each)[0] for each in options["until"]), key=len)


class NativeLM(OtherLM):
    """A folder's model on onnxruntime, each sequence alone in one run."""

    def __init__(self, folder: Path, begin: int, length: int) -> None:
        super().__init__(begin, length)
        self.decoder = parse_genai_config((folder / "genai_config.json").read_bytes()).decoder
        self.session = onnxruntime.InferenceSession(
            str(folder / self.decoder.filename), providers=["CPUExecutionProvider"]
        )

    def logits(self, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        feeds: dict[str, Any] = {}
        for each in self.session.get_inputs():
            if each.name == "input_ids":
                feeds[each.name] = np.array([ids], np.int64)
            elif each.name == "attention_mask":
                feeds[each.name] = np.ones((1, len(ids)), np.int64)
            else:
                feeds[each.name] = np.zeros((1, each.shape[1], 0, self.decoder.head_size), np.float32)
        found = self.session.run(["logits"], feeds)[0][0].astype(np.float64)
        logarithms: np.ndarray[Any, np.dtype[np.float64]] = found - np.log(np.exp(found).sum(-1, keepdims=True))
        return logarithms

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        answers = []
        for _, context, tokens in requests:
            before, scored = self.cut(context, tokens)
            rows = self.logits([*before, *scored][:-1])[-len(scored) :]
            values = rows[range(len(scored)), scored]
            answers.append((float(values.sum()), bool((rows.argmax(-1) == scored).all())))
        return answers

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        texts = []
        for request in requests:
            context, options = request.args
            ids, new = self.prompt(context, options), list[int]()
            while len(new) < options["max_gen_toks"] and new[-1:] != [END]:
                new.append(int(self.logits([*ids, *new])[-1].argmax()))
            texts.append(self.text(new, options))
        return texts


class LlamaLM(OtherLM):
    """A GGUF file in llama.cpp."""

    def __init__(self, scores: LlamaScores, begin: int) -> None:
        super().__init__(begin, scores.length)
        self.scores = scores

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The file has nano-llama's tokenizer, but does not ask for bos."""
        return super().tok_encode(string, add_special_tokens=False)

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        scored = self.scores.of([self.cut(context, tokens) for _, context, tokens in requests])
        margins = [min(margin for _, margin in each) for each in scored]
        self.margins |= {name: margin for (name, _, _), margin in zip(requests, margins, strict=True)}
        return [(sum(value for value, _ in each), margin > 0) for each, margin in zip(scored, margins, strict=True)]

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        prompts = [(self.prompt(*request.args), request.args[1]["max_gen_toks"]) for request in requests]
        found = self.scores.greedy(prompts)
        return [self.text(ids, request.args[1]) for ids, request in zip(found, requests, strict=True)]


def results(lm: Any, tasks: Sequence[str], limit: int) -> dict[str, Any]:
    """The harness' results, and the answers to each task's requests."""
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    found: dict[str, Any] = lm_eval.simple_evaluate(
        lm, tasks=[*tasks], task_manager=manager, limit=limit, bootstrap_iters=0, log_samples=True
    )
    return found


def close(found: dict[str, Any], wanted: dict[str, Any], other: OtherLM, bound: float = BOUND) -> None:
    """The same answers within the bound of each token, and greedy alike but for near ties; the same values in the table
    if the bound is BOUND. Prints the greatest difference of a token."""
    for task, values in wanted["results"].items() if bound == BOUND else ():
        for name, value in values.items():
            if isinstance(value, float):
                assert found["results"][task][name] == pytest.approx(value, rel=1e-4), (task, name)
    apart = []
    for task, samples in wanted["samples"].items():
        for one, two in zip(found["samples"][task], samples, strict=True):
            assert one["arguments"] == two["arguments"]
            for given, [mine], [theirs] in zip(one["arguments"], one["resps"], two["resps"], strict=True):
                if isinstance(theirs, str):
                    assert mine == theirs
                    continue
                mine, theirs = np.ravel(mine), np.ravel(theirs)
                apart.append(abs(mine[0] - theirs[0]) / len(other.tok_encode(given[-1])))
                if abs(other.margins.get(given, np.inf)) > 2 * bound:
                    assert list(mine[1:]) == list(theirs[1:])
    print(f"log probabilities differ by {max(apart):.1e} a token")
    assert max(apart) < bound


@pytest.fixture(scope="module")
def lm(site: SiteServer) -> Iterator[CapstanLM]:
    lm = CapstanLM(str(LLAMA), site=str(site.root), max_length=LENGTH, device="webgpu")
    yield lm
    lm.close()


def test_the_harness_tables_are_those_of_onnxruntime(lm: CapstanLM) -> None:
    assert lm.get_model_info()["capstan_device"] == "webgpu"
    native = NativeLM(LLAMA, lm.eot_token_id, LENGTH)
    tasks = ["capstan_topics", "capstan_rest_of_line", "capstan_held_out"]
    wanted = results(native, tasks, 2)
    assert native.tokens > 200
    close(results(lm, tasks, 2), wanted, native)


def test_a_request_that_the_page_refuses_is_an_error_of_its_class(lm: CapstanLM) -> None:
    with pytest.raises(RequestError, match=r"ConfigError: .*chat_template") as told:
        lm.apply_chat_template([{"role": "user", "content": "hi"}])
    assert told.value.type == "ConfigError"


@pytest.mark.extended
@pytest.mark.parametrize("way", ["plain", "module"])
def test_the_command_prints_the_harness_table(way: str, site: SiteServer) -> None:
    """`lm_eval` itself finds the model by our task files, `python -m capstan_host.evaluation` for all tasks."""
    program = ["-m", "lm_eval"] if way == "plain" else ["-m", "capstan_host.evaluation"]
    task = str(TASKS / "capstan_topics.yaml") if way == "plain" else "capstan_topics"
    arguments = [
        "--model",
        "capstan",
        "--model_args",
        f"model={LLAMA},site={site.root},max_length={LENGTH}",
        "--tasks",
        task,
    ]
    done = subprocess.run(
        [sys.executable, *program, *arguments, "--limit", "2"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "py_src"), "HOME": "/tmp"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|capstan_topics|" in done.stdout
    assert "|acc_norm|" in done.stdout


@pytest.mark.extended
@pytest.mark.parametrize("way", ["one machine", "cluster"])
def test_two_browsers_give_the_answers_of_one(way: str, site: SiteServer) -> None:
    """Three prompts are answered together in each page."""
    given: dict[str, Any] = {"site": str(site.root), "max_length": LENGTH, "browsers": 2, "batch_size": 3}
    with ExitStack() as stack:
        if way == "cluster":
            workers = LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0")
            given["scheduler"] = stack.enter_context(workers).scheduler_address
        lm = CapstanLM(str(LLAMA), device="webgpu", **given)
        stack.callback(lm.close)
        native = NativeLM(LLAMA, lm.eot_token_id, LENGTH)
        tasks = ["capstan_next_line", "capstan_held_out", "capstan_rest_of_line", "capstan_topics"]
        close(results(lm, tasks, 8), results(native, tasks, 8), native)


def most_probable(llama: LlamaLM) -> list[tuple[str, str]]:
    """Contexts, and the text of the token that llama.cpp picks behind each."""
    contexts = [f"line {number}: return" for number in range(8)]
    found = llama.scores.greedy([(llama.tok_encode(context), 1) for context in contexts])
    pairs = [(context, llama.words.decode(ids)) for context, ids in zip(contexts, found, strict=True)]
    whole = [llama.tok_encode(context) + ids for context, ids in zip(contexts, found, strict=True)]
    pairs = [pair for pair, ids in zip(pairs, whole, strict=True) if llama.tok_encode("".join(pair)) == ids]
    assert pairs, "no token is that of its text"
    return pairs


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama.cpp")
    install_llama_cpp(folder)
    return folder


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "bound"), [("F32", BOUND), ("Q8_0", 0.1), ("Q4_K", 0.1)])
def test_the_harness_tables_of_a_gguf_file_are_those_of_llama_cpp(
    kind: str, bound: float, llama_cpp: Path, site: SiteServer, tmp_path: Path
) -> None:
    made = make("llama", {"": GgmlType[kind]}, {"context_length": LENGTH}, vocabulary=512)
    file = write(made, tmp_path / f"a {kind}.gguf")
    lm = CapstanLM(str(file), site=str(site.root), device="webgpu")
    try:
        llama = LlamaLM(LlamaScores(file, llama_cpp, LENGTH), lm.eot_token_id)
        tasks = ["capstan_topics", "capstan_held_out", *["capstan_rest_of_line"] * (bound == BOUND)]
        close(results(lm, tasks, 3), results(llama, tasks, 3), llama, bound)
        assert llama.tokens > 200
        told = [Instance("loglikelihood", {}, pair, 0) for pair in most_probable(llama)]
        assert [greedy for _, greedy in lm.loglikelihood(told, disable_tqdm=True)] == [True] * len(told)
    finally:
        lm.close()
