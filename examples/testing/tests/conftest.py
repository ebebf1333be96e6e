"""The app, served from its folder, and the model in its page."""

from pathlib import Path

import pytest

APP = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def app_url(capstan_serve):
    return capstan_serve(APP) + "?device=webgpu"


@pytest.fixture(scope="session")
def llm(app_url, capstan_app):
    return capstan_app(app_url)
