"""The Python of docs/pyodide.md runs, block after block, in a Pyodide that Capstan did not start.
`python3 build.py test tests/notebooks` runs it with the notebooks."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser

from buildtools import ROOT
from capstan_host.testing.harness import watch
from tests.other_pyodide import installers, serving_pyodide

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/pyodide.md").read_text(), re.MULTILINE | re.DOTALL)
RUN = """
async def run(base, blocks):
    import io, micropip
    from contextlib import redirect_stdout
    from pyodide.code import eval_code_async
    micropip.set_index_urls([f"{base}simple"])
    names, printed = {"__name__": "__main__"}, []
    for block in blocks:
        with redirect_stdout(io.StringIO()) as output:
            await eval_code_async(block, globals=names)
        printed.append(output.getvalue())
    return printed
"""


def test_the_documents_blocks_run(browser: Browser, tmp_path: Path) -> None:
    with serving_pyodide(tmp_path) as url:
        page = browser.new_page()
        faults = watch(page, [])
        page.goto(url)
        wheels = [f"{url}wheels/{name}" for name in installers(tmp_path)]
        request = {"wheels": wheels, "script": RUN, "calls": [["run", url, BLOCKS]]}
        (printed,) = page.evaluate("async (request) => (await import('./start.js')).run(request)", request)
        page.close()
    assert [fault for fault in faults if "404" not in fault] == []
    install, configure, tokens, blocking, answer = printed
    assert (install, configure, blocking) == ("", "", "")
    assert len(tokens.split()) > 3
    assert answer.startswith("loading, ")
    assert answer.splitlines()[-1].startswith(f"{len(tokens.split())} tokens, the first after ")
