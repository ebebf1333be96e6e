"""Which unit tests find which random faults, as data: `build.py test --matrix`.

The tests are collected once. Each fault then has a process of its own, a fork of this one, in which the code of one
function is exchanged; it runs the tests that reach the line, a file at a time, quickest first. So a fault costs no more
than its tests take. Faults are drawn in functions: no value changes that a module computes while it is imported.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from buildtools import ROOT
from tests.default import is_default

from .catalogue import MUTATIONS
from .checkout import Checkout
from .sampling import RandomFault, python_faults, sampled, text_faults

__all__ = ["Matrix", "main", "shares"]

DATA = Path(__file__).with_name("matrix.json")

TRIED = "tried.json"
"""The data in the copy of the checkout."""
PACKAGE = "py_src/capstan"
NOT_HERE = ("onnx_pb2", "/_js/", "/page/", "/headless/", "/testing/")
"""Modules that a page alone imports, that a program wrote, or that drive the tests themselves."""
PAGE = {"ts": r"\.test\.mjs|tests\.node|_server\.mjs", "wgsl": r"wgsl|shader_declarations"}
"""A test file with one of these reads TypeScript or WGSL, in Node or itself."""
ENOUGH = 4
"""So many files that find a fault are enough: the others that reach it are not tried."""
DEAREST = 20
"""So many test files are listed that cost much for what they find."""
SECONDS = 5.0
"""So much processor time the tests of one fault have; on a busy machine others run meanwhile."""
HANGS = 120.0
"""A fault whose tests have not ended after so many seconds of the clock hangs one of them."""


class Matrix:
    """Takes the place of pytest's loop over the tests: tries `python` faults of the package, `web` of the page."""

    def __init__(self, out: Path, reached: Path, python: int, web: int, seed: int, commit: str) -> None:
        self._out, self._reached, self._python, self._web = out, reached, python, web
        self._seed, self._commit = seed, commit
        self._root = Path.cwd()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions(self._root / PACKAGE)
        modules = sorted((self._root / PACKAGE).rglob("*.py"))
        files = [path.relative_to(self._root).as_posix() for path in modules]
        files = [file for file in files if not any(part in file for part in NOT_HERE)]
        faults = sampled(
            self._root, files, self._python, self._seed, python_faults, lambda fault: bool(self._code(fault))
        )
        self._seconds, tests_of = self._reach(faults)
        found = [self._tried(n, fault, tests_of.get(n, []), len(faults)) for n, fault in enumerate(faults)]
        found += list(self._tried_in_web())
        whole: dict[str, float] = {}
        for name, seconds in self._seconds.items():
            whole[_file(name)] = round(whole.get(_file(name), 0) + seconds, 2)
        about = {"date": f"{datetime.date.today()}", "commit": self._commit, "seed": self._seed, "seconds": whole}
        lines = ",\n".join(json.dumps(each) for each in found)
        head = json.dumps(about)[:-1]
        self._out.write_text(f'{head}, "faults": [\n{lines}\n]}}\n', encoding="utf-8")
        return True

    def _code(self, fault: RandomFault) -> tuple[FunctionType, CodeType] | None:
        """The one function that this fault changes, and its code with the fault."""
        path = self._root / fault.file
        source = path.read_bytes()
        try:
            bad = compile(fault.mutated(source), str(path), "exec", dont_inherit=True)
        except SyntaxError:
            return None
        good = compile(source, str(path), "exec", dont_inherit=True)
        changed = [new for old, new in zip(_outermost(good), _outermost(bad), strict=False) if old != new]
        if len(changed) != 1:
            return None
        known = self._functions.get(_key(changed[0]), [])
        if len(known) != 1 or known[0].__code__.co_freevars != changed[0].co_freevars:
            return None
        return known[0], changed[0]

    def _reach(self, faults: list[RandomFault]) -> tuple[dict[str, float], dict[int, list[str]]]:
        """The seconds of each test that passes, and the tests that execute the line of each fault."""
        if not self._reached.exists():
            where: dict[tuple[str, int], list[int]] = {}
            for n, fault in enumerate(faults):
                where.setdefault((str(self._root / fault.file), fault.line), []).append(n)
            for line in _forked(lambda: self._watched(where), 3600):
                self._reached.write_text(line)
        kept_seconds, by_test = json.loads(self._reached.read_text())
        tests_of: dict[int, list[str]] = {}
        for name, reached in by_test.items():
            for n in reached:
                tests_of.setdefault(n, []).append(name)
        return kept_seconds, tests_of

    def _watched(self, where: dict[tuple[str, int], list[int]]) -> Iterator[str]:
        """Run all tests; watch the functions that have a fault's line."""
        lines = {file: {line for other, line in where if other == file} for file, _ in where}
        watched: dict[int, bool] = {}
        hit: set[int] = set()

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and (found := where.get((frame.f_code.co_filename, frame.f_lineno))):
                hit.update(found)
            return local

        def begin(frame: FrameType, event: str, _: Any) -> Any:
            code = frame.f_code
            if (known := watched.get(id(code))) is None:
                of_file = lines.get(code.co_filename, set())
                known = watched[id(code)] = any(line in of_file for _, _, line in code.co_lines())
                kept.append(code)
            return local if known else None

        kept: list[CodeType] = []
        seconds, reached = {}, {}
        items = list(self._items.values())
        for item, after in zip(items, [*items[1:], None], strict=True):
            hit.clear()
            begun = time.perf_counter()
            threading.settrace(begin)
            sys.settrace(begin)
            reports = runtestprotocol(item, nextitem=after, log=False)
            sys.settrace(None)
            if all(report.passed for report in reports):
                seconds[item.nodeid] = time.perf_counter() - begun
                reached[item.nodeid] = sorted(hit)
        yield json.dumps([seconds, reached])

    def _tried(self, n: int, fault: RandomFault, tests: list[str], count: int) -> dict[str, Any]:
        """The fault as data, with the test files that found it, that did not, and their seconds."""
        tests = [test for test in tests if test in self._seconds and test in self._items]
        source = (self._root / fault.file).read_bytes()
        told = self._in_fork(fault, source, self._quickest_first(tests), lambda: self._exchange(fault))
        print(f"{n + 1}/{count} {fault.file}:{fault.line} {fault.kind}: {told}", flush=True)
        return told

    def _tried_in_web(self) -> Iterator[dict[str, Any]]:
        """Faults of the page's code are written into this copy of the checkout, for tests that read its language."""
        paths = [path for end in ("ts", "wgsl") for path in (self._root / "web/src").rglob(f"*.{end}")]
        files = sorted(path.relative_to(self._root).as_posix() for path in paths)
        for fault in sampled(self._root, files, self._web, self._seed, text_faults):
            pattern = PAGE[fault.file.rpartition(".")[2]]
            readers = {
                file for file in map(_path, self._seconds) if re.search(pattern, (self._root / file).read_text())
            }
            tests = self._quickest_first([name for name in self._seconds if _path(name) in readers])
            path = self._root / fault.file
            good = path.read_bytes()
            try:
                path.write_bytes(fault.mutated(good))
                told = self._in_fork(fault, good, tests, lambda: None)
            finally:
                path.write_bytes(good)
            print(f"{fault.file}:{fault.line} {fault.kind}: {told}", flush=True)
            yield told

    def _quickest_first(self, tests: list[str]) -> list[list[str]]:
        """These tests by file; the file whose tests take the shortest comes first."""
        files: dict[str, list[str]] = {}
        for test in sorted(tests, key=lambda test: self._seconds[test]):
            files.setdefault(_file(test), []).append(test)
        return sorted(files.values(), key=lambda those: sum(self._seconds[test] for test in those))

    def _exchange(self, fault: RandomFault) -> None:
        exchanged = self._code(fault)
        assert exchanged
        exchanged[0].__code__ = exchanged[1]

    def _in_fork(
        self, fault: RandomFault, source: bytes, files: list[list[str]], seed: Callable[[], None]
    ) -> dict[str, Any]:
        told: dict[str, Any] = {**fault.described(source), "reached": len(files), "found": {}, "passed": {}}
        begun = ""

        def lines() -> Iterator[str]:
            seed()
            yield from self._run(files)

        for line in _forked(lines, HANGS) if files else ():
            name, result, seconds = json.loads(line)
            begun = name if result == "begun" else ""
            if not begun:
                told[result][name] = round(seconds, 2)
        if begun:
            told["found"][begun] = HANGS
        return told

    def _run(self, files: list[list[str]]) -> Iterator[str]:
        """In the fork: run the files' tests until enough of them failed, or the time is over."""
        begun, enough = time.process_time(), ENOUGH
        for those, following in zip(files, [*files[1:], None], strict=True):
            name, start, result = _file(those[0]), time.process_time(), "passed"
            if start - begun > SECONDS or not enough:
                return
            yield json.dumps([_function(those[0]), "begun", 0])
            after = self._items[following[0]] if following else None
            for test, then in zip(those, [*those[1:], None], strict=True):
                reports = runtestprotocol(self._items[test], nextitem=self._items[then] if then else after, log=False)
                if any(report.failed for report in reports):
                    name, result, enough = _function(test), "found", enough - 1
                    break
                if time.process_time() - begun > SECONDS:
                    break
            with suppress(Exception):
                self._items[those[0]].session._setupstate.teardown_exact(after)
            yield json.dumps([name, result, time.process_time() - start])


def _path(test: str) -> str:
    return test.partition("::")[0]


def _file(test: str) -> str:
    return _path(test).removeprefix("tests/unit/test_").removesuffix(".py")


def _function(test: str) -> str:
    return f"{_file(test)}::{test.partition('::')[2].partition('[')[0]}"


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _outermost(code: CodeType) -> list[CodeType]:
    """The functions of a module or class body, in order, without those inside functions."""
    found: list[CodeType] = []
    for const in code.co_consts:
        if isinstance(const, CodeType):
            is_function = const.co_flags & 0x2
            found += [const] if is_function else _outermost(const)
    return found


def _functions(package: Path) -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of the package that there are now."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    gc.unfreeze()
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(str(package)):
            found.setdefault(_key(each.__code__), []).append(each)
    gc.freeze()
    return found


def _forked(work: Callable[[], Iterator[str]], seconds: float) -> Iterator[str]:
    """The lines that `work` yields in a process of its own, which ends after so many seconds."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.setsid()
        try:
            for line in work():
                os.write(write, line.encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    end, left = time.monotonic() + seconds, b""
    while select.select([read], [], [], max(end - time.monotonic(), 0))[0] and (more := os.read(read, 1 << 20)):
        *whole, left = (left + more).split(b"\n")
        yield from (line.decode() for line in whole)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)


def main(arguments: Sequence[str]) -> int:
    """Try random faults in a copy of the checkout and write what found them, or print what the default finds of all."""
    parser = argparse.ArgumentParser(prog="build.py test --matrix", description=__doc__)
    parser.add_argument("--python", type=int, default=600, metavar="N", help="faults of the package")
    parser.add_argument("--web", type=int, default=150, metavar="N", help="faults of TypeScript and WGSL")
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument(
        "paths", nargs="*", default=["tests/unit"], metavar="PATH", help="the unit tests that are tried"
    )
    parser.add_argument("--out", type=Path, default=DATA, metavar="FILE", help="where the data goes")
    parser.add_argument("--commit", default="", help=argparse.SUPPRESS)
    parser.add_argument("--share", action="store_true", help="try none: print the shares that the default finds")
    args = parser.parse_args(arguments)
    if args.share:
        print(*shares(json.loads(DATA.read_text(encoding="utf-8"))), sep="\n")
        return 0
    copy = ROOT / "build/matrix"
    if not args.commit:
        Checkout(ROOT, copy)
        paths = os.pathsep.join([str(copy / "py_src"), str(copy)])
        head = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(head, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        command = [sys.executable, "-P", "-m", "tests.mutations.matrix", *arguments, "--commit", commit]
        status = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": paths}).returncode
        if not status:
            shutil.copy2(copy / TRIED, args.out)
        return status
    matrix = Matrix(Path(TRIED), Path("reached.json"), args.python, args.web, args.seed, args.commit)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *args.paths], plugins=[matrix]))


def shares(data: dict[str, Any]) -> list[str]:
    """The shares that the default finds of the catalogue's faults, and of the random ones that any unit test finds."""
    catalogue = [each for each in MUTATIONS if any(is_default(test) for test in each.tests)]
    lines = [f"catalogue: {_share(len(catalogue), len(MUTATIONS))} have a test that the default runs"]
    lines += [f"  not {each.name}: {', '.join(each.tests)}" for each in MUTATIONS if each not in catalogue]
    for kind in ("py", "ts", "wgsl"):
        faults = [fault for fault in data["faults"] if fault["file"].endswith(f".{kind}")]
        reached = [fault for fault in faults if fault["reached"]]
        found = [fault for fault in reached if fault["found"]]
        default = [each for each in found if any(is_default(f"tests/unit/test_{name}") for name in each["found"])]
        lines.append(
            f"random, {kind}: {len(reached)} of {len(faults)} faults are in code that unit tests run; these find "
            f"{_share(len(found), len(reached))}, the default {_share(len(default), len(found))} of those"
        )
    return [*lines, "seconds, faults found, found there alone:", *_dearest(data)]


def _dearest(data: dict[str, Any]) -> list[str]:
    """The test files that cost most for what they find: the first to think of for LEFT_OUT."""
    finders = [{name.partition("::")[0] for name in fault["found"]} for fault in data["faults"]]
    cost = {
        file: (seconds, sum(file in each for each in finders), sum(each == {file} for each in finders))
        for file, seconds in data["seconds"].items()
    }
    dear = sorted(cost, key=lambda file: cost[file][0] / (cost[file][1] + cost[file][2] + 1), reverse=True)
    return [f"{cost[file][0]:8.1f} {cost[file][1]:4} {cost[file][2]:4}  {file}" for file in dear[:DEAREST]]


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / max(of, 1):.1%})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
