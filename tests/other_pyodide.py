"""A page with a Pyodide that Capstan did not start: what its server has, and an index from which micropip installs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buildtools import ROOT
from buildtools.environment import MICROPIP_WHEELS, PROTOBUF_WHEELS
from buildtools.wheels import template_wheels
from capstan_host.model_arguments import BUNDLED
from tests import products
from tests.plain_server import serving_plainly

__all__ = ["installers", "serving_pyodide"]

MODULES = ROOT / "node_modules"
FIXTURES = ROOT / "tests/fixtures"
OLDER_ORT = "export const env = { versions: { web: '1.22.0' } };\n"
START = """import { loadPyodide } from "./pyodide/pyodide.mjs";

/** A Pyodide with these wheels, and what the functions of a script return. */
export async function run({ wheels, script, calls }) {
  const pyodide = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
  await pyodide.loadPackage(wheels, { messageCallback: () => {} });
  await pyodide.runPythonAsync(script);
  const results = [];
  for (const [name, ...given] of calls) {
    const called = pyodide.globals.get(name);
    const result = await ("promising" in WebAssembly ? called.callPromising(...given) : called(...given));
    results.push(result.toJs({ dict_converter: Object.fromEntries }));
  }
  return results;
}

if (!globalThis.document)
  onmessage = ({ data }) =>
    run(data).then(
      (results) => postMessage({ results }),
      (error) => postMessage({ error: String(error) }),
    );
"""


def installers(folder: Path) -> list[str]:
    """The names of the wheels in the folder that bring micropip."""
    return sorted(path.name for path in (folder / "wheels").glob("*.whl") if path.name.startswith(("micropip", "pack")))


@contextmanager
def serving_pyodide(folder: Path) -> Iterator[str]:
    """Serve, from this folder: Pyodide's and onnxruntime-web's packages as npm has them, models, and wheels with an
    index of them; the address."""
    for name, source in {
        "pyodide": MODULES / "pyodide",
        "ort": MODULES / "onnxruntime-web/dist",
        "models/bundled": BUNDLED,
        "models/nano-llama": FIXTURES / "nano-llama",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(source, target_is_directory=True)
    (folder / "older-ort").mkdir()
    (folder / "older-ort/ort.wasm.min.mjs").write_text(OLDER_ORT)
    (folder / "start.js").write_text(START)
    (folder / "index.html").write_text("<!doctype html><title>Pyodide</title>")
    (folder / "wheels").mkdir()
    ours = products.wheel(folder / "ours")
    for wheel in (ours, *PROTOBUF_WHEELS.glob("*.whl"), *MICROPIP_WHEELS.glob("*.whl"), *template_wheels()):
        shutil.copy(wheel, folder / "wheels")
        project = wheel.name.split("-")[0].replace("_", "-").lower()
        (folder / "simple" / project).mkdir(parents=True)
        link = f'<!doctype html><a href="/wheels/{wheel.name}">{wheel.name}</a>'
        (folder / "simple" / project / "index.html").write_text(link)
    with serving_plainly(folder) as url:
        yield url
