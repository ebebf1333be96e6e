"""The site folder is the named one, CAPSTAN_SITE's, or that of the npm package."""

from pathlib import Path

import pytest

from capstan_host.headless.site_folder import PAGE, SiteError, find_site


def make_site(folder: Path) -> Path:
    page = folder / PAGE
    page.parent.mkdir(parents=True)
    page.write_text("<!doctype html>")
    return folder


def test_an_argument_is_before_the_environment_and_the_npm_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, environ = make_site(tmp_path / "named"), {"CAPSTAN_SITE": str(make_site(tmp_path / "set"))}
    installed = make_site(tmp_path / "node_modules/capstan-webgpu")
    below = tmp_path / "a/b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_site(named, environ) == named
    assert find_site(None, environ) == tmp_path / "set"
    assert find_site(None, {}) == installed


def test_a_folder_without_the_page_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node_modules/capstan-webgpu").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SiteError, match=f"site={tmp_path} has no {PAGE}"):
        find_site(tmp_path, {})
    with pytest.raises(SiteError, match=f"CAPSTAN_SITE={tmp_path} has no {PAGE}"):
        find_site(None, {"CAPSTAN_SITE": str(tmp_path)})
    with pytest.raises(SiteError, match="npm install capstan-webgpu"):
        find_site(None, {})
