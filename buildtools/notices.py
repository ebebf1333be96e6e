"""Writes buildtools/THIRD_PARTY_NOTICES.md from the licence files of the packages that `dist` and the wheel contain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from . import ROOT
from .carried_wheels import CARRIED, DETECTOR
from .environment import distribution, site_packages

__all__ = ["NOTICES", "notices", "onnxruntime_notices", "python_version"]

NOTICES = ROOT / "buildtools/THIRD_PARTY_NOTICES.md"
MODULES = ROOT / "node_modules"
HEAD = """# Third-party notices

Capstan itself is under the MIT licence (see LICENSE). Its web build and its wheel contain the parts below. The files of
Pyodide and onnxruntime-web are unmodified copies from their npm packages. The documentation, in docs/ of the web build,
has the notices of its own parts in docs/licences.txt. This file is written by `python3 build.py dist --notices`.
"""
HELD = {"@cfworker/json-schema": "Copyright (c) 2020 Jeremy Danyow", "content-type": None}
"""The packages under the MIT licence that the files of @modelcontextprotocol/client hold, with the line of copyright if
the package on npm lacks the licence file of its repository.
"""


def notices() -> str:
    """The whole document, from what is installed."""
    sections = [
        section(
            f"Pyodide {npm('pyodide')['version']}",
            npm("pyodide")["license"],
            "in capstan/pyodide/",
            "Its source code is at github.com/pyodide/pyodide, under the tag of this version. Its files also hold "
            "CPython (Python Software Foundation License, below) and libraries linked into it (among them zlib, bzip2, "
            "xz, SQLite, libffi and Emscripten's run time), whose licences Pyodide's source code lists.",
            python_licence("pathspec"),
        ),
        section(
            "CPython", "PSF-2.0", "in capstan/pyodide/, as part of Pyodide", "", python_licence("typing_extensions")
        ),
        section(
            f"onnxruntime-web {npm('onnxruntime-web')['version']}",
            npm("onnxruntime-web")["license"],
            "in capstan/ort/",
            "What it contains in turn is listed in onnxruntime's own notices, which `dist` puts beside this file as "
            "onnxruntime-ThirdPartyNotices.txt.",
            onnxruntime_folder().joinpath("LICENSE").read_text(encoding="utf-8"),
        ),
        *(
            section(
                f"{name} {npm(name)['version']}",
                npm(name)["license"],
                f"bundled into {place}",
                "",
                (MODULES / name / "LICENSE").read_text(encoding="utf-8"),
            )
            for place, names in (
                ("capstan/worker.js", ("@huggingface/tokenizers", "@noble/hashes")),
                ("capstan/phonemes.js", ("phonemize",)),
                ("demo.js of the demo page and chat.js of the npm package", ("dompurify", "marked")),
                ("highlight.js of the demo page and of the npm package", ("highlight.js",)),
                ("math.js of the demo page and of the npm package", ("katex",)),
                ("pdf_text.js of the demo page and of the npm package", ("pdfjs-dist",)),
                ("demo.js of the demo page and chat.js of the npm package", ("idb",)),
                (
                    "mcp.js of the npm package",
                    (
                        *("@modelcontextprotocol/client", "@modelcontextprotocol/core"),
                        *("eventsource-parser", "pkce-challenge", "zod"),
                    ),
                ),
            )
            for name in names
        ),
        *(
            section(name, "MIT", "in mcp.js of the npm package, as part of @modelcontextprotocol/client", "", text)
            for name, text in held()
        ),
        section(
            f"uPlot {npm('uplot')['version']}",
            npm("uplot")["license"],
            "bundled into drawer.js of the demo page",
            "",
            (MODULES / "uplot/LICENSE").read_text(encoding="utf-8"),
        ),
        section(
            f"protobuf {python_version('protobuf')}",
            "BSD-3-Clause",
            "in capstan/wheels/",
            "",
            python_licence("protobuf"),
        ),
        *(
            section(
                f"{title} {python_version(name)}",
                "BSD-3-Clause",
                "in capstan/wheels/, as bytecode",
                "It is loaded for the first chat template.",
                python_licence(name),
            )
            for title, name in (("Jinja2", "jinja2"), ("MarkupSafe", "markupsafe"))
        ),
        *(
            section(
                f"{each.title} {each.version}",
                each.licence,
                "in capstan/wheels/, as Pyodide builds it",
                "It is loaded when a script imports it.",
                each.licence_text(),
            )
            for each in CARRIED
        ),
        section(
            f"{DETECTOR.title} {DETECTOR.version}",
            DETECTOR.licence,
            "in capstan/wheels/, one of the forms of its model",
            "It is loaded for the first live captions.",
            DETECTOR.licence_text(),
        ),
        section(
            f"ONNX {python_version('onnx')}",
            "Apache-2.0",
            "capstan/graph/onnx_pb2.py in the wheel is protoc's output for ONNX's schema, from the onnx package",
            "",
            python_licence("onnx"),
        ),
    ]
    return "\n".join([HEAD, *sections])


def section(title: str, licence: str, where: str, remark: str, text: str) -> str:
    """One part: what it is, its licence by SPDX name, where it is, its licence's text."""
    paragraphs = [f"## {title}", f"{licence}; {where}.", *([remark] if remark else [])]
    body = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return "\n\n".join([*paragraphs, f"```text\n{body}\n```"]) + "\n"


def held() -> Iterator[tuple[str, str]]:
    """The packages of HELD, each with its licence."""
    own = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for name, holder in HELD.items():
        if holder is None:
            yield name, (MODULES / name / "LICENSE").read_text(encoding="utf-8")
        else:
            yield name, re.sub(r"Copyright .*", holder, own, count=1)


def onnxruntime_notices() -> Path:
    """onnxruntime's own notices, which its Python wheel carries and its npm package does not."""
    return onnxruntime_folder() / "ThirdPartyNotices.txt"


def onnxruntime_folder() -> Path:
    return site_packages() / "onnxruntime"


def npm(name: str) -> dict[str, str]:
    """The package.json of an installed npm package."""
    package: dict[str, str] = json.loads((MODULES / name / "package.json").read_text(encoding="utf-8"))
    return package


def python_version(name: str) -> str:
    """The version of an installed Python package."""
    return distribution(name).name.removesuffix(".dist-info").split("-")[1]


def python_licence(name: str) -> str:
    """The text of an installed Python package's licence: MPL-2.0 for pathspec, the PSF's for typing_extensions."""
    folder = distribution(name)
    (found,) = [*folder.glob("LICENSE"), *folder.glob("licenses/LICENSE*")]
    return found.read_text(encoding="utf-8")
