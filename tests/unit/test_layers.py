"""The page and the worker share web/src/wire alone, and TypeScript files do not import one another in a circle.
buildtools/floors.toml has the rules for Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from buildtools import ROOT
from buildtools.imports import typescript_imports

THREADS = {
    "src/page": {"src/wire"},
    "src/agent": {"src/page", "src/wire"},
    "src/prompt_api": {"src/page", "src/wire"},
    "src/chat": {"src/page", "src/wire"},
    "src/worker": {"src/wire"},
    "src/wire": set[str](),
    "demo": {"src/page", "src/chat", "src/wire"},
    "harness": {"src/page", "src/wire"},
}
"""Folders of web, and those whose modules each may import; only src/worker runs in the worker."""


def crossings(modules: Mapping[str, set[str]]) -> list[str]:
    """Each import that the row of its folder in THREADS does not allow."""
    folder = {name: next((each for each in THREADS if name.startswith(f"{each}/")), "") for name in modules}
    return [
        f"{name} imports {target}"
        for name, targets in sorted(modules.items())
        for target in sorted(targets)
        if folder[name] and folder[target] not in {folder[name], *THREADS[folder[name]]}
    ]


def test_page_and_worker_meet_on_the_wire() -> None:
    modules = typescript_imports(ROOT / "web")
    assert {
        f"src/{Path(name).parts[1]}" for name in modules if name.startswith("src/") and not name.endswith(".d.ts")
    } <= THREADS.keys()
    assert crossings(modules) == []
    found = crossings({**modules, "src/page/run.ts": {"src/worker/ort.ts"}, "src/worker/ort.ts": {"src/page/run.ts"}})
    assert found == ["src/page/run.ts imports src/worker/ort.ts", "src/worker/ort.ts imports src/page/run.ts"]


def test_there_is_no_circle() -> None:
    graph = typescript_imports(ROOT / "web")
    TopologicalSorter(graph).prepare()
    assert sum(map(len, graph.values())) > len(graph), "imports are found"
