"""docs/typescript.md uses every public name of the package's TypeScript; its blocks are type-checked, and run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from buildtools import ROOT
from buildtools.bundles import ENTRIES
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.documented import chat_model_beside, hub_at_its_address, repositories

SOURCES = ROOT / "web/src"
DOCUMENT = (ROOT / "docs/typescript.md").read_text(encoding="utf-8")
LISTED = re.compile(r"^export (?:type )?\{(.*?)\}", re.MULTILINE | re.DOTALL)
DECLARED = re.compile(r"^export (?:class|function|interface|type|const) (\w+)", re.MULTILINE)
ALL_OF = re.compile(r'^export \* from "(\.[./\w]*)"', re.MULTILINE)
TOOLS = ROOT / "node_modules/.bin"


def exported(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    listed = {name.split()[-1] for names in LISTED.findall(text) for name in names.split(",") if name.strip()}
    return listed.union(
        DECLARED.findall(text), *(exported(file.parent / f"{module}.ts") for module in ALL_OF.findall(text))
    )


def program() -> str:
    """The blocks as one module, which imports what they name."""
    code = "".join(re.findall(r"^```ts\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
    used = set(re.findall(r"\w+", code))
    imports = []
    for entry, file in ENTRIES.items():
        place = "capstan-webgpu" if entry == "capstan" else file.with_suffix("")
        names = ", ".join(sorted(exported(file) & used - ({"Answer"} if entry == "capstan" else set())))
        imports.append(f"import {{ {names} }} from {json.dumps(str(place))};\n")
        imports += [f"import {json.dumps(str(place))};\n"] if entry == "chat" else []
    return "".join(imports) + code


def test_every_public_name_is_in_an_example() -> None:
    names = set().union(*(exported(file) for file in ENTRIES.values()))
    assert {"Capstan", "Client", "RunResult", "StoredFile", "ChatTurn", "capstanModel"} < names
    code = program()
    body = code.split("\n", len(ENTRIES) + 1)[-1]
    assert {name for name in names if not re.search(rf"\b{name}\b", body)} == set()


def test_the_examples_are_of_the_types_that_are_exported(tmp_path: Path) -> None:
    (tmp_path / "examples.ts").write_text(program(), encoding="utf-8")
    options: dict[str, Any] = {
        "extends": str(ROOT / "tsconfig.json"),
        "include": [],
        "files": ["examples.ts", *map(str, SOURCES.rglob("*.d.ts"))],
    }
    paths = {"capstan-assets": [str(SOURCES / "page/assets_beside.ts")], "capstan-webgpu": [str(ENTRIES["capstan"])]}
    roots = [str(ROOT / "node_modules/@types"), str(ROOT / "node_modules")]
    options["compilerOptions"] = {"paths": paths, "typeRoots": roots}
    (tmp_path / "tsconfig.json").write_text(json.dumps(options))
    done = subprocess.run([TOOLS / "tsc", "-p", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.extended
def test_the_examples_run(browser: Browser, site: SiteServer, tmp_path: Path) -> None:
    source, made = tmp_path / "examples.ts", tmp_path / "examples.js"
    source.write_text(program(), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    client = f"{site.url}capstan/capstan.js"
    options = ["--bundle", "--format=esm", f"--alias:capstan-webgpu={client}", f"--external:{client}"]
    options += ["--external:./highlight.js", "--external:./mcp.js", "--log-level=error", f"--outfile={made}"]
    subprocess.run([TOOLS / "esbuild", source, *options], check=True, cwd=ROOT)
    errors = watch(page, [])
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    with chat_model_beside(site), hub_at_its_address(context, repositories(tmp_path)):
        page.goto(site.url + "blank.html")
        page.evaluate(
            """(code) => {
              const url = URL.createObjectURL(new Blob([code], { type: 'text/javascript' }));
              return import(url).then(() => null);
            }""",
            made.read_text(encoding="utf-8"),
        )
    context.close()
    assert not errors, f"the page reported {errors}"
    assert said[-1] == "SmolLM2 v3"
    assert any(line.startswith("OptionError max_new_tokens is 0") for line in said)
    assert any(re.fullmatch(r"true true \d+ \d+", line) for line in said)
