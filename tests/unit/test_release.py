"""Every place that has the version of a release has the same one."""

from __future__ import annotations

import json
import re
import tomllib

from buildtools import ROOT


def test_both_packages_the_lock_file_and_the_examples_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    package, lock = (json.loads((ROOT / name).read_text()) for name in ("package.json", "package-lock.json"))
    found = {
        "package.json": package["version"],
        "package-lock.json": lock["version"],
        "package-lock.json, its own package": lock["packages"][""]["version"],
    }
    for path in ROOT.glob("examples/*/package.json"):
        wanted = json.loads(path.read_text()).get("dependencies", {}).get("capstan-webgpu", f"^{version}")
        found[f"examples/{path.parent.name}/package.json"] = wanted.removeprefix("^")
    assert found == dict.fromkeys(found, version), "docs/releasing.md says where the version is"


def test_the_changelog_has_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [name for name, _ in headings][:2] == ["Unreleased", version]
    assert re.fullmatch(r" - \d{4}-\d{2}-\d{2}", headings[1][1])


def test_the_source_folder_is_not_published_but_what_dist_writes() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    assert "private" not in package
    assert "exit 1" in package["scripts"]["prepublishOnly"]
