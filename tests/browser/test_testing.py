"""capstan_host.testing's fixtures in a page: ids against oracles, a wrong weight, goldens, counters, a mutual speed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from capstan.errors import OptionError
from capstan.model_files.gguf.header import GgmlType
from capstan_host.testing.answers import MismatchError
from capstan_host.testing.harness import RemoteError
from capstan_host.testing.oracles import Golden, NativeGenai
from capstan_host.testing.pages import PageModel
from tests.gguf_models import make, write
from tests.llama_cpp import install_llama_cpp

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
PROMPT = [5, 6, 7, 8, 9]
LAST_PRODUCT = 217_088
"""A place in the packed weights of nano-llama's last product."""
Opened = Callable[..., PageModel]


def test_ids_are_those_of_the_native_package_at_four_bytes_a_token(capstan_model: Opened, tmp_path: Path) -> None:
    llm = capstan_model(LLAMA, device="webgpu")
    agreement = llm.assert_ids(PROMPT, oracle="genai", tokens=21)
    assert (len(agreement.ids), agreement.ties) == (21, [])
    counters = llm.counters(PROMPT, 21)
    assert (counters.buffers, counters.bytes_per_token, counters.per_token["create_bind_group"]) == (0, 4.0, 0)
    assert 0 < counters.submits <= counters.totals["steps"] + 1 == 21
    golden = Golden(tmp_path / "golden.json")
    golden.update = True
    assert llm.assert_ids(PROMPT, oracle=golden, tokens=21).ids == agreement.ids
    assert '"margins": [' in golden.file.read_text()


def test_a_wrong_weight_is_told_from_a_near_tie(capstan_model: Opened, tmp_path: Path) -> None:
    wrong = Path(shutil.copytree(LLAMA, tmp_path / "wrong"))
    for digests in wrong.glob("*.shards.json"):
        digests.unlink()
    (data,) = wrong.glob("*.data")
    content = bytearray(data.read_bytes())
    content[LAST_PRODUCT : LAST_PRODUCT + 4096] = content[LAST_PRODUCT : LAST_PRODUCT + 4096][::-1]
    data.write_bytes(content)
    llm = capstan_model(wrong, device="webgpu")
    with pytest.raises(MismatchError) as caught:
        llm.assert_ids(PROMPT, oracle=NativeGenai(LLAMA), tokens=21)
    text = str(caught.value)
    assert "differs from onnxruntime-genai" in text
    assert "; no near tie (tie=0.03125)" in text
    assert "a weight, a configuration or a kernel of both is at fault" in text
    llm.assert_ids(PROMPT, oracle="genai", tokens=21)


def test_what_a_page_refuses_comes_with_its_type(capstan_model: Opened) -> None:
    with pytest.raises(OptionError, match="a model has no option heat; its options are device"):
        capstan_model(LLAMA, heat=1)
    with pytest.raises(OptionError, match="there is no model .*nowhere"):
        capstan_model("nowhere")
    with pytest.raises(RemoteError, match="ArgumentTypeError|OptionError") as caught:
        capstan_model(LLAMA, device="webgpu", capture="loud").answer(PROMPT, 3)
    assert "loud" in caught.value.message


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::capstan_host.testing.NearTieWarning")
def test_ids_of_a_gguf_file_are_those_of_llama_cpp(
    capstan_model: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama_cpp(tmp_path)
    monkeypatch.chdir(tmp_path)
    made = make("qwen2", {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0}, {"block_count": 2}, vocabulary=512)
    (tmp_path / "m").mkdir()
    llm = capstan_model(write(made, tmp_path / "m/a model.gguf"), device="webgpu")
    agreement = llm.assert_ids([5, 60, 17, 80, 33, 2], oracle="llama.cpp", tokens=12)
    assert len(agreement.ids) == 12
    # The weights are random, and llama.cpp rounds activations to 8 bits.
    assert len(agreement.ties) <= 2
