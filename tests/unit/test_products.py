"""Which packages the tests of examples and notebooks take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import products


@pytest.mark.parametrize("names", [[], ["capstan-webgpu-0.1.0.tgz", "capstan-webgpu-0.2.0.tgz"]], ids=["none", "two"])
def test_a_folder_without_just_one_package_is_told(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setenv("CAPSTAN_DIST", str(tmp_path))
    said = f"CAPSTAN_DIST is {tmp_path}, which has {len(names)} files capstan-webgpu-*.tgz; `python3 build.py dist`"
    with pytest.raises(AssertionError, match=re.escape(said)):
        products.tarball(tmp_path / "made")


def test_the_packages_of_the_folder_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["capstan-webgpu-0.2.0.tgz", "capstan_webgpu-0.2.0-py3-none-any.whl"]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setenv("CAPSTAN_DIST", str(tmp_path))
    assert [make(tmp_path / "made").name for make in (products.tarball, products.wheel)] == names
    assert not (tmp_path / "made").exists()
