"""capstan_host.testing without a page: how ids are judged, goldens kept and ratios told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

import pytest

from capstan.errors import OptionError
from capstan_host.testing.answers import Answer, MismatchError, NearTieWarning
from capstan_host.testing.oracles import Expected, Golden, LlamaCpp, NativeGenai, Oracle, OracleError, Subject
from capstan_host.testing.tested_model import TestedModel
from capstan_host.testing.timing import compare, ratio_of

ROOT = Path(__file__).parents[2]
PROMPT = [1, 2]
END = 0


class PaperModel(TestedModel):
    """Picks the likeliest by a table of log probabilities, which depend on the sequence's length."""

    version = "1"

    def __init__(self, table: Callable[[Sequence[int]], dict[int, float]], folder: Path | None = None) -> None:
        self.table = table
        self.folder = folder
        self.answered = 0
        self.times: dict[str, float] = {}

    def answer(self, prompt: str | Sequence[int], tokens: int, *, log_probabilities: int | None = None) -> Answer:
        assert not isinstance(prompt, str)
        self.answered += 1
        ids: list[int] = []
        told: list[dict[int, float]] = []
        while len(ids) < tokens and END not in ids:
            found = self.table([*prompt, *ids])
            ids.append(max(found, key=lambda token: found[token]))
            if ids[-1] != END:
                told.append(found)
        counts = {"readback_bytes": 4 * len(ids), "submits": 2, "create_buffer": 0}
        return Answer(ids, self.decode(ids), 0.1, 100.0, counts, told if log_probabilities else [])

    def encode(self, text: str) -> list[int]:
        return [ord(each) for each in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(96 + each) for each in ids)

    def kernel_times(self) -> dict[str, float]:
        return self.times


class PaperOracle:
    """The ids of another PaperModel."""

    def __init__(self, model: PaperModel, margin: float | None = None) -> None:
        self.model, self.told = model, margin

    def expected(self, subject: Subject, prompt: Sequence[int], tokens: int) -> Expected:
        return Expected("paper", self.model.answer(prompt, tokens).ids)

    def margin(self, subject: Subject, prompt: Sequence[int], picked: int, other: int) -> float | None:
        return self.told


def counting(ids: Sequence[int]) -> dict[int, float]:
    """The next token is one more than the sequence's length; its neighbour is half as probable."""
    return {len(ids) + 1: log(0.6), len(ids) + 2: log(0.3), END: log(0.1)}


def changed(at: int, values: dict[int, float]) -> Callable[[Sequence[int]], dict[int, float]]:
    return lambda ids: values if len(ids) == at else counting(ids)


ORACLE = PaperOracle(PaperModel(counting))


def test_equal_ids_agree_and_cost_one_answer() -> None:
    model = PaperModel(counting)
    assert model.assert_ids(PROMPT, oracle=ORACLE, tokens=4).ids == [3, 4, 5, 6]
    assert model.answered == 1


def test_a_wrong_weight_is_told_with_the_token_both_texts_and_the_margin() -> None:
    model = PaperModel(changed(4, {9: log(0.8), 5: log(0.1), END: log(0.1)}))
    with pytest.raises(MismatchError) as caught:
        model.assert_ids(PROMPT, oracle=PaperOracle(ORACLE.model, 1.5), tokens=4)
    text = str(caught.value)
    assert "token 2 after the prompt of 2 differs from paper: the page picked 9 'i', not 5 'e'" in text
    assert "page:   'cdif'" in text
    assert "oracle: 'cdef'" in text
    assert "prefers its token by 2.0794, the oracle its own by 1.5000; no near tie (tie=0.03125)" in text
    assert "a weight, a configuration or a kernel of both is at fault" in text


def test_decode_steps_that_part_from_prompts_are_told() -> None:
    begun: list[int] = []

    class Stepping(PaperModel):
        def answer(self, prompt: str | Sequence[int], tokens: int, *, log_probabilities: int | None = None) -> Answer:
            begun[:] = [len(prompt)]
            return super().answer(prompt, tokens, log_probabilities=log_probabilities)

    model = Stepping(lambda ids: {9: 0.0, 1: -5.0} if len(ids) > begun[0] + 1 else counting(ids))
    with pytest.raises(MismatchError, match="lead to 5: the decode steps are at fault, not the weights"):
        model.assert_ids(PROMPT, oracle=ORACLE, tokens=4)


def near(ids: Sequence[int]) -> dict[int, float]:
    return changed(4, {9: log(0.4), 5: log(0.396), END: log(0.2)})(ids)


def test_a_near_tie_is_a_warning_and_the_rest_is_compared_behind_the_oracles_token() -> None:
    with pytest.warns(NearTieWarning, match=r"token 2: the page picked 9, paper 5, with a margin of 0\.0101"):
        agreement = PaperModel(near).assert_ids(PROMPT, oracle=ORACLE, tokens=4)
    assert [(tie.place, tie.page, tie.oracle) for tie in agreement.ties] == [(2, 9, 5)]
    wrong_behind = PaperModel(lambda ids: {9: 0.0, 6: -3.0} if len(ids) == 5 else near(ids))
    with pytest.warns(NearTieWarning), pytest.raises(MismatchError, match="token 3 after the prompt"):
        wrong_behind.assert_ids(PROMPT, oracle=ORACLE, tokens=4)


@pytest.mark.parametrize(("oracle", "tie"), [(ORACLE, 0.01), (ORACLE, 0.0), (PaperOracle(ORACLE.model, 0.5), 0.02)])
def test_no_near_tie_is_excused_beyond_its_bound_or_where_the_oracle_was_sure(oracle: Oracle, tie: float) -> None:
    with pytest.raises(MismatchError, match="no near tie"):
        PaperModel(near).assert_ids(PROMPT, oracle=oracle, tokens=4, tie=tie)


def test_an_answer_that_ends_early_or_late_is_told() -> None:
    ends = changed(4, {END: log(0.9), 5: log(0.1)})
    with pytest.raises(MismatchError, match="the page picked 0 '`', not 5 'e', which ends the answer"):
        PaperModel(ends).assert_ids(PROMPT, oracle=ORACLE, tokens=4)
    with pytest.raises(MismatchError, match="the page picked 5 'e', not 0 '`'"):
        PaperModel(counting).assert_ids(PROMPT, oracle=PaperOracle(PaperModel(ends)), tokens=4)


def test_a_golden_is_written_read_and_refused_for_another_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    weights = tmp_path / "model/weights"
    weights.write_bytes(b"abc")
    model = PaperModel(counting, tmp_path / "model")
    golden = Golden(tmp_path / "golden.json")
    with pytest.raises(OracleError, match="there is no golden .*: write it with --capstan-update-goldens"):
        model.assert_ids(PROMPT, oracle=golden, tokens=4)
    golden.update = True
    model.assert_ids(PROMPT, oracle=golden, tokens=4)
    model.assert_ids([7], oracle=golden, tokens=2)
    golden.update = False
    assert model.assert_ids(PROMPT, oracle=golden, tokens=4).ids == [3, 4, 5, 6]
    with pytest.raises(OracleError, match="no answer of 3 tokens to this prompt of 1"):
        model.assert_ids([7], oracle=golden, tokens=3)
    with pytest.raises(MismatchError, match=r"golden\.json \(by capstan 1\): the page picked 9"):
        PaperModel(near, model.folder).assert_ids(PROMPT, oracle=golden, tokens=4)
    weights.write_bytes(b"abd")
    with pytest.raises(OracleError, match="a golden of another model: weights of .* changed"):
        model.assert_ids(PROMPT, oracle=golden, tokens=4)
    assert PaperModel(counting).assert_ids(PROMPT, oracle=golden, tokens=4).ids == [3, 4, 5, 6], "an app's page"
    golden.file.write_text('{"format": 9}')
    with pytest.raises(OracleError, match="has format 9, not 1"):
        model.assert_ids(PROMPT, oracle=golden, tokens=4)


def test_a_golden_excuses_a_near_tie_where_its_own_model_was_not_sure(tmp_path: Path) -> None:
    unsure = changed(2, {3: log(0.4), 8: log(0.399), END: log(0.2)})
    golden = Golden(tmp_path / "golden.json")
    golden.update = True
    PaperModel(unsure).assert_ids(PROMPT, oracle=golden, tokens=4)
    golden.update = False
    other = PaperModel(changed(2, {3: log(0.399), 8: log(0.4), END: log(0.2)}))
    with pytest.warns(NearTieWarning, match="token 0: the page picked 8"):
        other.assert_ids(PROMPT, oracle=golden, tokens=4)
    with pytest.raises(MismatchError, match=r"the oracle its own by 0\.6931 or more; no near tie"):
        PaperModel(lambda ids: unsure(ids) if len(ids) == 2 else near(ids)).assert_ids(PROMPT, oracle=golden, tokens=4)


@pytest.mark.parametrize(
    ("oracle", "error", "told"),
    [
        ("ggml", OptionError, "oracle is 'ggml': give 'genai', 'llama.cpp' or a Golden"),
        ("genai", OptionError, "needs the model's files, and the page's are elsewhere: give the page `folder=`"),
        (NativeGenai(ROOT), OracleError, "has no genai_config.json"),
        (LlamaCpp(ROOT / "models"), OracleError, "is no GGUF file"),
    ],
)
def test_an_oracle_that_cannot_answer_says_so(oracle: str | Oracle, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        PaperModel(counting).assert_ids(PROMPT, oracle=oracle, tokens=4)
    with pytest.raises(OptionError, match="tokens is 0"):
        PaperModel(counting).assert_ids(PROMPT, oracle=oracle, tokens=0)


def test_a_missing_package_of_an_oracle_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OracleError, match="needs onnxruntime_genai and numpy: run `pip install onnxruntime-genai`"):
        PaperModel(counting, ROOT / "models/bundled").assert_ids(PROMPT, oracle="genai", tokens=4)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(OracleError, match="no package node-llama-cpp.*: run `npm install --save-dev node-llama-cpp`"):
        PaperModel(counting, tmp_path / "a.gguf").assert_ids(PROMPT, oracle="llama.cpp", tokens=4)


def test_a_difference_counts_only_if_the_whole_interval_is_beyond_the_tolerance() -> None:
    steady = [(1.3, 1.0)] * 9
    assert ratio_of(steady, 0.1).slower
    assert not ratio_of(steady, 0.3).slower
    assert ratio_of([(1.0, 1.3)] * 9, 0.1).faster
    noisy = ratio_of([(1.3, 1.0)] * 7 + [(0.9, 1.0)] * 2, 0.1)
    assert (noisy.median, noisy.low, noisy.high, noisy.slower) == (1.3, 0.9, 1.3, False)
    assert ratio_of([(1.3, 1.0)] * 8 + [(0.5, 1.0)], 0.1).slower, "one disturbed round of nine is left out"


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    draw = random.Random(5)
    held = 0
    for _ in range(2000):
        ratio = ratio_of([(draw.lognormvariate(0, 1), 1.0) for _ in range(9)], 0.1)
        held += ratio.low <= 1 <= ratio.high
    assert 0.95 <= held / 2000 <= 0.98, held


def test_rounds_take_turns_and_their_order_turns_round() -> None:
    calls: list[str] = []

    def took(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    ratio = compare(lambda: took("run", 2.0), lambda: took("base", 1.0), rounds=6, warm_up=0)
    assert calls == ["run", "base", "base", "run"] * 3
    assert (ratio.median, ratio.seconds, ratio.rounds) == (2.0, (2.0, 1.0), 6)
    assert compare(lambda: None, lambda: None, rounds=6).rounds == 6, "else the calls are timed"
    with pytest.raises(OptionError, match="rounds is 5; an interval of 95% needs 6 or more"):
        compare(lambda: 1.0, lambda: 1.0, rounds=5)
    with pytest.raises(OptionError, match="tolerance is 0"):
        compare(lambda: 1.0, lambda: 1.0, tolerance=0)


def test_what_became_slower_is_told_with_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, base = PaperModel(counting), PaperModel(counting)
    slow.times, base.times = {"norm": 900.0, "gemv": 210.0}, {"norm": 90.0, "gemv": 200.0, "other": 9.0}
    base.assert_not_slower(slow, PROMPT, tokens=4)
    monkeypatch.setattr(slow, "seconds_per_token", lambda prompt, tokens: 0.02)
    with pytest.raises(MismatchError, match=r"a token takes 2\.000 times the baseline, .*'norm' takes 900 us, not 90;"):
        slow.assert_not_slower(base, PROMPT, tokens=4)


def test_counters_are_told_for_a_token() -> None:
    counters = PaperModel(counting).counters(PROMPT, 4)
    assert (counters.submits, counters.buffers, counters.bytes_per_token) == (2, 0, 4.0)
    assert counters.per_token["submits"] == 0.5


PAPER_PAGES = """
from types import SimpleNamespace
import pytest
from capstan_host.testing.plugin import PAGES

errors = []
page = SimpleNamespace(name="paper", keep=lambda folder, write: write(folder / "errors.json", errors))
pages = SimpleNamespace(open=[page], begin=errors.clear, end=lambda: None, errors=lambda: list(errors))

def pytest_configure(config):
    config.stash[PAGES] = pages

@pytest.fixture
def thrown():
    return errors
"""
PAPER_TESTS = """
def test_right(): pass
def test_wrong(): assert False
def test_thrown(thrown): thrown.append("out of the page")
def test_right_again(): pass
"""


def pytest_in(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The folder's tests with the plugin."""
    command = [sys.executable, "-m", "pytest", "-p", "capstan_host.testing.plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py_src"), **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_failure_is_kept_and_an_error_of_a_page_is_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PAPER_PAGES)
    (tmp_path / "test_paper.py").write_text(PAPER_TESTS)
    done = pytest_in(tmp_path)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "the pages reported ['out of the page']" in done.stdout
    kept = {path.name: (path / "paper/errors.json").read_text() for path in (tmp_path / "test-results").iterdir()}
    assert kept == {
        "test_paper.py-test_wrong": "[]\n",
        "test_paper.py-test_thrown": '[\n "out of the page"\n]\n',
    }


def test_a_failure_of_a_test_with_a_long_id_is_kept_under_a_shorter_name(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PAPER_PAGES)
    case = 'import pytest\n@pytest.mark.parametrize("name", ["x" * 300])\ndef test_wrong(name): assert False\n'
    (tmp_path / "test_paper.py").write_text(case)
    done = pytest_in(tmp_path)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    [kept] = (tmp_path / "test-results").iterdir()
    assert len(kept.name) < 255


PAPER_BROWSER = """
from types import SimpleNamespace
import pytest
from capstan_host.headless import chromium

chromium.gpu_devices = lambda: []

@pytest.fixture(scope="session")
def capstan_site():
    return None

@pytest.fixture(scope="session")
def capstan_playwright():
    return SimpleNamespace(chromium=SimpleNamespace(launch=lambda **_: SimpleNamespace(close=lambda: None)))
"""


def test_the_report_ends_with_the_reason_for_a_run_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PAPER_BROWSER)
    (tmp_path / "test_paper.py").write_text("def test_it(capstan_browser): pass\n")
    (tmp_path / "chromium").write_text('#!/bin/sh\necho "Chromium 156"\n')
    (tmp_path / "chromium").chmod(0o755)
    for adapter, told in (("auto", True), ("software", False)):
        done = pytest_in(tmp_path, CAPSTAN_BROWSER=str(tmp_path / "chromium"), CAPSTAN_ADAPTER=adapter)
        assert "1 passed" in done.stdout, done.stdout + done.stderr
        assert ("Capstan: the CPU computes, since Chromium finds no GPU here" in done.stdout) == told


def test_a_run_that_does_not_use_the_plugin_imports_no_playwright(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n    assert 'playwright' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    plugin = ["-p", "capstan_host.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--rootdir", tmp_path, tmp_path]
    environment = {"PYTHONPATH": str(ROOT / "py_src"), "PATH": ""}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
