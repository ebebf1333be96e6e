"""Runs functions of tests/browser/scripts inside the page's Python and brings their results back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capstan_host.testing.harness import Harness, exec_request

__all__ = ["PageScripts"]

FOLDER = Path(__file__).parent / "scripts"

INSTALL = """
import json, sys
from pathlib import Path

root = Path("/page_scripts")
folder = root / "tests/browser/scripts"
folder.mkdir(parents=True, exist_ok=True)
for name, text in json.loads(sys.argv[1]).items():
    (folder / name).write_text(text)
if str(root) not in sys.path:
    sys.path.insert(0, str(root))
from tests.browser.scripts import probe

probe.install()
probe.forgive()
"""

CALL = """
import json, sys
from importlib import import_module

module, name, arguments = json.loads(sys.argv[1])
found = await getattr(import_module("tests.browser.scripts." + module), name)(models, **arguments)
print("result:" + json.dumps(found))
"""


@dataclass
class PageScripts:
    """The scripts, written into the page's file system, with the WebGPU prototypes of its worker wrapped."""

    harness: Harness
    expected: list[str] = field(default_factory=list)
    """Texts of faults that the running test provokes on purpose."""

    @classmethod
    def install(cls, harness: Harness) -> PageScripts:
        texts = {path.name: path.read_text() for path in FOLDER.iterdir() if path.is_file()}
        done = harness.exec(INSTALL, argv=[json.dumps(texts)])
        assert (done.status, done.stderr) == (0, ""), done.stderr
        return cls(harness)

    def run(self, module: str, name: str, *models: str, **arguments: Any) -> Any:
        """Await `name` of a script module with the models' URLs by name and keyword arguments; its JSON-able result."""
        self.begin(module, name, *models, **arguments)
        return self.end()

    def begin(self, module: str, name: str, *models: str, **arguments: Any) -> None:
        """`run` without waiting for the result."""
        argv = [json.dumps([module, name, arguments])]
        self.harness.begin(exec_request(CALL, models, argv, f"{module}.py"))

    def end(self) -> Any:
        """The result of what was begun."""
        done = self.harness.end_exec()
        assert done.status == 0, done.stderr
        line = done.stdout.splitlines()[-1]
        assert line.startswith("result:"), done.stdout
        return json.loads(line.removeprefix("result:"))

    def expect(self, text: str) -> None:
        """The running test provokes faults whose message holds `text`."""
        self.expected.append(text)

    def faults(self) -> list[str]:
        """The errors in the page and on its devices since the last call, without the expected ones."""
        on_devices = self.run("faults", "seen")
        # Errors that the page reported during this call count, too, as the list is emptied here.
        found = [*self.harness.errors, *on_devices]
        found = [text for text in found if not any(part in text for part in self.expected)]
        self.harness.errors.clear()
        self.expected.clear()
        return found
