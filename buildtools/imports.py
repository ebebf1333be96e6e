"""Reads which modules import which, of a Python package or of TypeScript files, without importing any of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import ROOT

__all__ = ["HOST", "Import", "both_packages", "imports", "sources", "typescript_imports"]

HOST = "capstan_host"
FROM = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*"(\.[^"]+)\"""")


@dataclass(frozen=True)
class Import:
    """`target` is a module of ours by its name, without `capstan.` for that package, or the name of another module."""

    target: str
    ours: bool


def sources(folder: Path) -> dict[str, str]:
    """The text of each module of a package, by its name in it; the package itself has the folder's name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or folder.name] = path.read_text()
    return found


def both_packages() -> dict[str, str]:
    """The modules of `capstan`, and those of `capstan_host` by their whole names."""
    host = sources(ROOT / "py_src" / HOST)
    return {
        **sources(ROOT / "py_src/capstan"),
        **{name if name == HOST else f"{HOST}.{name}": text for name, text in host.items()},
    }


def imports(name: str, text: str, modules: Mapping[str, str], whole: str = "capstan") -> Iterator[Import]:
    """The imports of a module of the package `whole`."""
    is_package = name == whole or any(other.startswith(f"{name}.") for other in modules)
    here = [] if name == whole else name.split(".")
    package = here if is_package else here[:-1]

    def own_name(dotted: str) -> str | None:
        """Ours by its name in `modules`, the package itself by none; None for others."""
        first, _, rest = dotted.partition(".")
        if first == whole:
            return rest
        return dotted if first == HOST and HOST in modules else None

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = own_name(alias.name)
                yield (alias.name, False) if name is None else (name or whole, True)
            return
        if node.level:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".") * bool(node.module)
        elif (own := own_name(node.module or "")) is not None:
            base = own.split(".") * bool(own)
        else:
            yield node.module or "", False
            return
        for alias in node.names:
            longest = ".".join([*base, alias.name])
            yield longest if longest in modules else ".".join(base) or whole, True

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target, is_ours in targets(node):
                yield Import(target, is_ours)


def typescript_imports(folder: Path) -> dict[str, set[str]]:
    """The imports of each TypeScript file of a folder from other files of it, `import type` too, as relative paths."""
    files = {path for path in sorted(folder.rglob("*.ts")) if "node_modules" not in path.parts}
    found = {}
    for path in files:
        targets = ((path.parent / name).resolve() for name in FROM.findall(path.read_text(encoding="utf-8")))
        found[path.relative_to(folder).as_posix()] = {
            target.relative_to(folder).as_posix()
            for each in targets
            if (target := each.with_name(f"{each.name}.ts")) in files
        }
    return found
