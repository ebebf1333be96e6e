"""<capstan-chat> has types in the markup of React, Vue and Svelte: right attributes compile, wrong ones do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildtools import ROOT
from tests import products

HEAD = 'import type {{}} from "capstan-webgpu/jsx/{0}";\n'
REACT = """import { createElement } from "react";
const shown = (count: number) => console.log(count);
export const page = (
  <capstan-chat model="m/" system="Be brief." plain oncapstan-answer={({ detail }) => shown(detail.messages.length)} />
);
// @ts-expect-error  a model is a text
export const wrong = <capstan-chat model={5} />;
// @ts-expect-error  detail is a boolean
export const other = <capstan-chat oncapstan-busy={({ detail }) => detail.messages} />;
console.log(createElement);
"""
SVELTE = """import type { SvelteHTMLElements } from "svelte/elements";
type Chat = SvelteHTMLElements["capstan-chat"];
export const page: Chat = { model: "m/", "oncapstan-load": ({ detail }) => detail.close() };
// @ts-expect-error  a model is a text
export const wrong: Chat = { model: 5 };
"""
VUE = """import type { GlobalComponents } from "vue";
type Chat = InstanceType<GlobalComponents["capstan-chat"]>["$props"];
export const page: Chat = { model: "m/", onCapstanError: ({ detail }) => console.log(detail.code) };
// @ts-expect-error  a model is a text
export const wrong: Chat = { model: 5 };
"""
PAGES = {
    "react": (["react@19", "@types/react@19"], "page.tsx", REACT),
    "svelte": (["svelte@5"], "page.ts", SVELTE),
    "vue": (["vue@3"], "page.ts", VUE),
}


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return products.tarball(tmp_path_factory.mktemp("tarball"))


@pytest.mark.parametrize("framework", PAGES)
def test_the_element_has_types_in_a_frameworks_markup(framework: str, tarball: Path, tmp_path: Path) -> None:
    packages, name, page = PAGES[framework]
    (tmp_path / "package.json").write_text('{ "private": true, "type": "module" }')
    install = ["npm", "install", str(tarball), *packages, "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / name).write_text(HEAD.format(framework) + page)
    tsc = [str(ROOT / "node_modules/.bin/tsc"), "--noEmit", "--strict", "--skipLibCheck", "--jsx", "preserve"]
    flags = ["--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
    lib = ["--lib", "ES2024,DOM,DOM.Iterable,DOM.AsyncIterable"]
    done = subprocess.run([*tsc, *flags, *lib, name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
