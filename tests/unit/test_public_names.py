"""The names that a user may import; a change here changes the interface and belongs in the changelog."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import capstan
from capstan.device.device_host import DeviceHost

PUBLIC = """
Adapters ArgumentTypeError AsyncRequiredError BindingError BufferMismatchError CapstanError Caption ClosedError
ConfigError DeviceError DeviceLostError DeviceUnavailableError FallbackWarning Generator GeneratorParams GuidanceError
HubRepository KnownModel LogitsError MemoryTypeError Model ModelFacts ModelFileError OptionError OutOfMemoryError
PictureError PromptError Score
SearchOptions Segment SoundError Speculation SpeculationStats StoppingStream StorageError StoredWeights TapeCheckError
TapeError TapeKeyError TextStream Timing Tokenizer TokenizerStream Trace Transcriber Transcription TranscriptionRun
UncomputedError UnsupportedModelError ValidationError Verification VersionError Voice WeightStore
WeightsChangedError configure logits_processor measure memory models notebook open_device plan shortlist_processor trace
"""

GENAI = {
    "Model": ["type"],
    "Generator": [
        "append_tokens",
        "generate_next_token",
        "get_next_tokens",
        "get_sequence",
        "is_done",
        "rewind_to",
        "token_count",
        "get_logits",
        "set_logits",
    ],
    "GeneratorParams": ["set_search_options"],
    "Tokenizer": ["encode", "decode", "create_stream"],
    "TokenizerStream": ["decode"],
}
"""Names that a script written for onnxruntime-genai uses."""

IN_THE_PAGE = ("capstan._js", "capstan.page", "capstan_host.fleet.in_page")


def modules() -> list[str]:
    places = [str(Path(capstan.__path__[0]).parent)]
    found = pkgutil.walk_packages(places, onerror=lambda name: None)
    ours = (module.name for module in found if module.name.startswith(("capstan.", "capstan_host.")))
    return [name for name in ours if not name.startswith(IN_THE_PAGE)]


def test_public_names_are_pinned() -> None:
    assert sorted(capstan.__all__) == PUBLIC.split()
    for name in capstan.__all__:
        assert hasattr(capstan, name)


@pytest.mark.parametrize(("kind", "names"), GENAI.items())
def test_names_of_onnxruntime_genai_are_there(kind: str, names: list[str]) -> None:
    missing = [name for name in names if not hasattr(getattr(capstan, kind), name)]
    assert missing == []


@pytest.mark.parametrize("name", modules())
def test_every_module_imports_on_cpython_and_names_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    public = getattr(module, "__all__", [])
    assert [item for item in public if not hasattr(module, item)] == []
    assert len(set(public)) == len(public)


def test_importing_capstan_needs_no_numpy_protobuf_jinja2_or_page() -> None:
    names = ("numpy", "google.protobuf", "jinja2", "js", "pyodide")
    code = f"import sys, capstan; print([n for n in {names} if n in sys.modules])"
    path = capstan.__path__[0].removesuffix("/capstan")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("kind", ["Generator", "GeneratorParams", "Model", "Tokenizer", "SearchOptions", "WeightStore"])
def test_public_classes_are_documented(kind: str) -> None:
    public = getattr(capstan, kind)
    assert public.__doc__
    undocumented = [
        name
        for name, value in vars(public).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property)) and not value.__doc__
    ]
    assert undocumented == []


def test_the_page_s_module_has_the_members_of_a_host() -> None:
    tree = ast.parse(Path(capstan.__file__).with_name("_js").joinpath("page_host.py").read_text(encoding="utf-8"))
    (listed,) = (each.value for each in tree.body if isinstance(each, ast.Assign) and "__all__" in ast.unparse(each))
    members = {name for kind in DeviceHost.__mro__[:2] for name in vars(kind) if not name.startswith("_")}
    assert set(ast.literal_eval(listed)) == members
