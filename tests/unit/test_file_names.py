"""Names of files below a folder, as attackers and exporters write them."""

from __future__ import annotations

import pytest

from capstan.errors import OptionError
from capstan.model_files.file_names import address_of, folder_address, gguf_address, why_not_below


@pytest.mark.parametrize(
    "name",
    [
        "model.onnx",
        "onnx/model_q4.onnx_data_1",
        "a b.data",
        "100%.data",
        "é.onnx",
        "x?y#z",
        "...",
        "a..b",
        "x" * 1024,
    ],
)
def test_names_of_files_are_taken(name: str) -> None:
    assert why_not_below(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "it is empty"),
        ("x" * 1025, "it has 1025 characters; at most 1024"),
        ("../x", '"." or ".."'),
        ("a/../../x", '"." or ".."'),
        ("/etc/passwd", "empty"),
        ("//host/x", "empty"),
        ("a//b", "empty"),
        ("./x", '"." or ".."'),
        ("..\\x", '"\\"'),
        ("C:x", '":"'),
        ("https://host/x", '":"'),
        ("%2e%2e/x", '"." or ".."'),
        ("%2E./x", '"." or ".."'),
        ("..%2fx", '"." or ".."'),
        ("..%5cx", '"\\"'),
        ("%252e%252e/x", '"." or ".."'),
        ("%2525252525252e/x", "percent-encoded several times"),
        (".\t./x", "a control character"),
        ("\t../x", "a control character"),
        ("x\n", "a control character"),
        ("x\0.data", "a control character"),
        ("x%00.data", "a control character"),
        ("x\x7f", "a control character"),
        (" ../x", "begins or ends with a space"),
        ("x\ud800", "characters that UTF-8 cannot encode"),
        ("x%ed%a0%80", "characters that UTF-8 cannot encode"),
    ],
)
def test_names_that_lead_out_of_the_folder_are_not(name: str, why: str) -> None:
    found = why_not_below(name)
    assert found is not None
    assert why in found


def test_what_means_something_else_in_an_address_is_encoded() -> None:
    assert address_of("/m/", "onnx/a b?c#d%41é.data") == "/m/onnx/a%20b%3Fc%23d%2541%C3%A9.data"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/m/?key=SECRET", "'https://host/m/' with a query"),
        ("https://host/m/#SECRET", "'https://host/m/' with a query"),
        ("https://me:SECRET@host/m/", "'host/m/' with credentials"),
        ("/m\0/", "characters that are invalid in an address"),
        ("/m\ud800/", "characters that are invalid in an address"),
    ],
)
def test_an_address_with_more_than_a_folder_is_refused_without_showing_it(url: str, shown: str) -> None:
    with pytest.raises(OptionError) as raised:
        folder_address(url)
    assert shown in str(raised.value)
    assert "SECRET" not in str(raised.value)


def test_the_address_of_a_gguf_file() -> None:
    for end in ("", "?download=true", "#readme", "?download=true#x.onnx", "#?a"):
        assert gguf_address(f"https://host/m/a%20model.gguf{end}") == ("https://host/m/", "a model.gguf"), end
    assert gguf_address("MODEL-Q8_0.GGUF") == ("./", "MODEL-Q8_0.GGUF")
    for folder in ("https://host/m", "https://host/gguf", "/m.gguf/", "/m?file=a.gguf", "/m#a.gguf"):
        assert gguf_address(folder) is None, folder
    with pytest.raises(OptionError) as raised:
        gguf_address("https://me:SECRET@host/m/model.gguf?key=SECRET")
    assert str(raised.value).startswith("a model's path is 'host/m/model.gguf' with a query; give the file's address")
    assert "SECRET" not in str(raised.value)


def test_an_address_ends_in_a_slash() -> None:
    assert folder_address("/models/a%20b") == folder_address("/models/a%20b/") == "/models/a%20b/"
    assert folder_address("https://host/@scope/m") == "https://host/@scope/m/"
