"""lm-evaluation-harness over Capstan's page: its tables are those of the same model on onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import onnxruntime
import pytest
import tokenizers
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from buildtools.server import SiteServer
from capstan.evaluation import TASKS, CapstanLM, RequestError
from capstan.model_files.config import parse_genai_config

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = Path(__file__).parents[2]
LLAMA = FIXTURES / "nano-llama"
BOUND = 1e-4
"""Between two log probabilities of a token."""
LENGTH = 128


class NativeLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """A folder's model on onnxruntime, each sequence alone in one run."""

    def __init__(self, folder: Path, begin: int, length: int) -> None:
        super().__init__()
        self.decoder = parse_genai_config((folder / "genai_config.json").read_bytes()).decoder
        self.session = onnxruntime.InferenceSession(
            str(folder / self.decoder.filename), providers=["CPUExecutionProvider"]
        )
        self.words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.begin, self.length = begin, length
        self.tokens = 0

    @property
    def eot_token_id(self) -> int:
        return self.begin

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return list(self.words.encode(string, add_special_tokens=False).ids)

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
            whole = [*context, *tokens][-self.length :]
            scored = whole[-min(len(tokens), len(whole) - 1) :]
            rows = self.logits(whole[:-1])[-len(scored) :]
            values = rows[range(len(scored)), scored]
            self.tokens += len(scored)
            answers.append((float(values.sum()), bool((rows.argmax(-1) == scored).all())))
        return answers

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(ids, self.begin, self.length - 1, 1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(value for value, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        texts = []
        for request in requests:
            context, options = request.args
            ids = self.tok_encode(context)[-(self.length - options["max_gen_toks"]) :]
            new: list[int] = []
            text = ""
            while len(new) < options["max_gen_toks"] and not any(each in text for each in options["until"]):
                new.append(int(self.logits([*ids, *new])[-1].argmax()))
                if new[-1] == 1:
                    break
                text = self.words.decode(new)
            texts.append(min((text.split(each)[0] for each in options["until"]), key=len))
        return texts


def results(lm: Any, tasks: Sequence[str], limit: int) -> dict[str, Any]:
    """The harness' results, and the answers to each task's requests."""
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    found: dict[str, Any] = lm_eval.simple_evaluate(
        lm, tasks=[*tasks], task_manager=manager, limit=limit, bootstrap_iters=0, log_samples=True
    )
    return found


def close(found: dict[str, Any], wanted: dict[str, Any], tokens: int) -> None:
    """The same values in the table, and the same answers within the bound of as many tokens."""
    for task, values in wanted["results"].items():
        for name, value in values.items():
            if isinstance(value, float):
                assert found["results"][task][name] == pytest.approx(value, rel=1e-4), (task, name)
    for task, samples in wanted["samples"].items():
        for one, other in zip(found["samples"][task], samples, strict=True):
            assert one["arguments"] == other["arguments"]
            for mine, theirs in zip(one["resps"], other["resps"], strict=True):
                if isinstance(theirs[0], str):
                    assert mine == theirs
                    continue
                mine, theirs = (np.ravel(each) for each in (mine[0], theirs[0]))
                assert mine[0] == pytest.approx(theirs[0], abs=BOUND * tokens)
                assert list(mine[1:]) == list(theirs[1:])


@pytest.fixture(scope="module")
def lm(site: SiteServer) -> Iterator[CapstanLM]:
    lm = CapstanLM(str(LLAMA), site=str(site.root), max_length=LENGTH)
    yield lm
    lm.close()


def test_the_harness_tables_are_those_of_onnxruntime(lm: CapstanLM) -> None:
    assert lm.get_model_info()["capstan_device"] == "webgpu"
    native = NativeLM(LLAMA, lm.eot_token_id, LENGTH)
    tasks = ["capstan_topics", "capstan_rest_of_line", "capstan_held_out"]
    wanted = results(native, tasks, 2)
    assert native.tokens > 200
    close(results(lm, tasks, 2), wanted, LENGTH)


def test_a_request_that_the_page_refuses_is_an_error_of_its_class(lm: CapstanLM) -> None:
    with pytest.raises(RequestError, match=r"ConfigError: .*chat_template") as told:
        lm.apply_chat_template([{"role": "user", "content": "hi"}])
    assert told.value.type == "ConfigError"
    assert "Traceback" in told.value.detail


@pytest.mark.extended
@pytest.mark.parametrize("way", ["plain", "module"])
def test_the_command_prints_the_harness_table(way: str, site: SiteServer) -> None:
    """`lm_eval` itself finds the model by our task files, `python -m capstan.evaluation` for all tasks."""
    program = ["-m", "lm_eval"] if way == "plain" else ["-m", "capstan.evaluation"]
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
def test_two_browsers_give_the_answers_of_one(site: SiteServer) -> None:
    lm = CapstanLM(str(LLAMA), site=str(site.root), max_length=LENGTH, browsers=2)
    try:
        native = NativeLM(LLAMA, lm.eot_token_id, LENGTH)
        tasks = ["capstan_next_line", "capstan_held_out", "capstan_rest_of_line", "capstan_topics"]
        close(results(lm, tasks, 24), results(native, tasks, 24), LENGTH)
    finally:
        lm.close()
