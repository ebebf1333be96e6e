"""The wheel: what is in it, and which tool `build.py wheel` takes."""

from __future__ import annotations

import zipfile
from pathlib import Path

from buildtools import ROOT
from buildtools.commands import wheel
from buildtools.imports import both_packages, imports
from buildtools.pyodide_root import make_pyodide_root
from buildtools.wheels import ON_CPYTHON, build_wheel, page_wheels


def test_the_wheel_holds_every_module_the_generated_ones_and_the_licences(tmp_path: Path) -> None:
    path = build_wheel(tmp_path / "wheel")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    sources = {source.relative_to(ROOT / "py_src").as_posix() for source in (ROOT / "py_src").rglob("*.py")}
    assert "in_the_wheel/onnxruntime_genai.py" in sources
    assert {source.removeprefix("in_the_wheel/") for source in sources} <= names
    assert "capstan/graph/onnx_pb2.py" in names
    assert {"capstan/_js/host.js", "capstan/_js/engine_calls.py"} <= set(names)
    assert {name.rpartition("/")[2] for name in names if "licenses/" in name} == {"LICENSE", "THIRD_PARTY_NOTICES.md"}
    assert not [
        name
        for name in names
        if not name.startswith(("capstan/", "capstan_host/", "capstan_webgpu-", "onnxruntime_genai.py"))
    ]


def test_the_wheel_of_our_own_page_leaves_out_what_its_worker_brings() -> None:
    ours = next(path for path in page_wheels() if path.name.startswith("capstan_webgpu-"))
    with zipfile.ZipFile(ours) as archive:
        names = archive.namelist()
        [record] = [archive.read(name).decode() for name in names if name.endswith(".dist-info/RECORD")]
    assert "capstan/_js/host.js" not in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"capstan", "capstan_webgpu", "onnxruntime_genai.py"}
    assert not [name for name in names if name.startswith(ON_CPYTHON)]
    assert sorted(line.split(",")[0] for line in record.splitlines()) == sorted(names)


def test_modules_of_pages_import_none_that_their_wheel_lacks() -> None:
    modules = both_packages()
    lacking = tuple(folder.rstrip("/").removeprefix("capstan/").replace("/", ".") for folder in ON_CPYTHON)
    found = {
        (name, item.target)
        for name, text in modules.items()
        if not name.startswith(lacking)
        for item in imports(name, text, modules)
        if item.ours and item.target.startswith(lacking)
    }
    assert found == {("capstan", "local.local_host")}, "which __init__.py imports on CPython alone"


def test_pyodide_build_is_left_out_with_a_reason_where_it_cannot_run() -> None:
    assert wheel.obstacle((3, 11), "/usr/bin/make") == "it needs Python 3.12, this is 3.11"
    assert wheel.obstacle((3, 12), None) == "it needs make"
    assert wheel.obstacle((3, 12), "/usr/bin/make") is None


def test_the_pyodide_root_says_which_interpreter_it_is_for(tmp_path: Path) -> None:
    root = make_pyodide_root(tmp_path / "xbuildenv/pyodide-root")
    variables = dict(
        line.removeprefix("export ").split(" ?= ", 1)
        for line in (root / "Makefile.envs").read_text().splitlines()
        if line.startswith("export ")
    )
    assert (variables["PYODIDE_VERSION"], variables["PYVERSION"]) == ("314.0.7", "3.14.2")
    assert Path(variables["SYSCONFIGDATA_DIR"], variables["SYSCONFIG_NAME"] + ".py").is_file()
