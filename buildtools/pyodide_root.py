"""The cross-build environment that `pyodide build` wants, made from Pyodide's npm package instead of the network.

It describes the interpreter only: enough for a pure-Python package, which needs no compiler.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from . import CACHE, ROOT

__all__ = ["make_pyodide_root"]

PACKAGE = ROOT / "node_modules/pyodide"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SYSCONFIG = "_sysconfigdata__emscripten_wasm32-emscripten"


def make_pyodide_root(root: Path = CACHE / "xbuildenv/pyodide-root") -> Path:
    """Write the folder that PYODIDE_ROOT names and return it; it is made again each time."""
    info = json.loads((PACKAGE / "pyodide-lock.json").read_text(encoding="utf-8"))["info"]
    version = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))["version"]
    shutil.rmtree(root.parent, ignore_errors=True)
    major, minor, micro = info["python"].split(".")
    install = root / f"cpython/installs/python-{info['python']}"
    include = install / f"include/python{major}.{minor}"
    for folder in (root / "dist", root / "tools", include, install / "sysconfigdata"):
        folder.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(PACKAGE / name, root / "dist" / name)
    with zipfile.ZipFile(PACKAGE / "python_stdlib.zip") as library:
        (install / f"sysconfigdata/{SYSCONFIG}.py").write_bytes(library.read(f"{SYSCONFIG}.py"))
    (root / "tools/constraints.txt").touch()
    (root.parent / "requirements.txt").touch()
    variables = {
        "PYODIDE_VERSION": version,
        "PYODIDE_ABI_VERSION": info["abi_version"],
        "PYODIDE_EMSCRIPTEN_VERSION": info["platform"].removeprefix("emscripten_").replace("_", "."),
        "PYVERSION": info["python"],
        "PYMAJOR": major,
        "PYMINOR": minor,
        "PYMICRO": micro,
        "PLATFORM_TRIPLET": "wasm32-emscripten",
        "SYSCONFIG_NAME": SYSCONFIG,
        "SYSCONFIGDATA_DIR": str(install / "sysconfigdata"),
        "CPYTHONINSTALL": str(install),
        "PYTHONINCLUDE": str(include),
        "TARGETINSTALLDIR": str(install),
        "CFLAGS_BASE": "",
        "CXXFLAGS_BASE": "",
        "LDFLAGS_BASE": "",
        "PIP_CONSTRAINT": str(root / "tools/constraints.txt"),
    }
    exports = [f"export {name} ?= {value}" for name, value in variables.items()]
    (root / "Makefile.envs").write_text("\n".join([*exports, ".output_vars:", "\tenv", ""]))
    return root
