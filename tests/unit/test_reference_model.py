"""The reference device against onnxruntime-genai, the oracle, on every fixture."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from capstan import graph
from capstan.device.reference.reference_model import ReferenceModel
from capstan.device.reference.reference_sequence import ReferenceSequence
from capstan.errors import ClosedError, ModelFileError, PromptError
from capstan.stages.sampling import sample
from capstan.stages.search import SearchOptions
from tests import oracle
from tests.oracle import Action

FIXTURES = sorted(path.parent for path in (Path(__file__).parents[1] / "fixtures").glob("*/genai_config.json"))
LLAMA = next(folder for folder in FIXTURES if folder.name == "nano-llama")
PROMPT = [5, 6, 7, 8, 9]
GREEDY = SearchOptions()

every_fixture = pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)


def pick(sequence: ReferenceSequence) -> int:
    return sample(sequence.logits(), GREEDY, sequence.length)


def generate(sequence: ReferenceSequence, count: int) -> list[int]:
    """Greedy ids; the last one is not run, as the next prefill or decode may be another."""
    picked = [pick(sequence)]
    while len(picked) < count:
        sequence.decode(picked[-1])
        picked.append(pick(sequence))
    return picked


def with_eos(folder: Path, eos: int, place: Path) -> Path:
    """A copy of a fixture with another end-of-sequence id."""
    twin = place / folder.name
    shutil.copytree(folder, twin)
    tree = json.loads((twin / "genai_config.json").read_text())
    tree["model"]["eos_token_id"] = eos
    (twin / "genai_config.json").write_text(json.dumps(tree))
    return twin


def with_norms_in_attention(folder: Path, place: Path) -> Path:
    """A copy of a folder as the builder writes it for WebGPU: attention norms q and k itself."""
    twin = place / folder.name
    shutil.copytree(folder, twin)
    model = graph.parse((twin / "model.onnx").read_bytes())
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]:
        norms = []
        for place_of in (0, 1):
            back = made_by[node.input[place_of]]
            norm = made_by[back.input[0]]
            split = made_by[norm.input[0]]
            node.input[place_of] = split.input[0]
            norms.append(norm)
            for gone in (back, norm, split):
                model.graph.node.remove(gone)
        node.input.extend(["", "", *(norm.input[1] for norm in norms)])
        epsilon = node.attribute.add(name="qk_norm_epsilon", type=1)
        epsilon.f = next(item.f for item in norms[0].attribute if item.name == "epsilon")
    (twin / "model.onnx").write_bytes(graph.serialize(model))
    return twin


def test_norms_within_attention_are_computed(tmp_path: Path) -> None:
    folder = LLAMA.parent / "nano-qwen3"
    sequence = ReferenceModel(with_norms_in_attention(folder, tmp_path)).sequence()
    sequence.prefill(PROMPT)
    assert generate(sequence, 12) == oracle.greedy(folder, PROMPT, 12)


@pytest.mark.one_in(7)
@every_fixture
@pytest.mark.parametrize("prompt", [1, 5, 31, 63, 64, 65], ids=lambda size: f"{size}_tokens")
def test_greedy_ids_are_the_oracles(folder: Path, prompt: int) -> None:
    ids = list(range(40, 40 + prompt))
    sequence = ReferenceModel(folder).sequence()
    sequence.prefill(ids)
    assert generate(sequence, 40) == oracle.greedy(folder, ids, 40)


@pytest.mark.one_in(3)
@every_fixture
def test_greedy_ids_are_the_oracles_up_to_the_context_length(folder: Path) -> None:
    sequence = ReferenceModel(folder).sequence()
    sequence.prefill(PROMPT)
    wanted = oracle.greedy(folder, PROMPT, 1000)
    assert len(wanted) == 512 - len(PROMPT)
    assert generate(sequence, len(wanted)) == wanted


@every_fixture
def test_logits_are_the_oracles(folder: Path) -> None:
    sequence = ReferenceModel(folder).sequence()
    sequence.prefill(PROMPT)
    np.testing.assert_allclose(np.array(sequence.logits()), oracle.logits(folder, PROMPT), atol=1e-5)


@pytest.mark.one_in(3)
@every_fixture
def test_append_after_generate_is_the_oracles(folder: Path) -> None:
    actions: list[Action] = [("append", PROMPT), ("generate", 20), ("append", [11, 12, 13]), ("generate", 50)]
    trace = oracle.drive(folder, actions)
    sequence = ReferenceModel(folder).sequence()
    sequence.prefill(PROMPT)
    first = generate(sequence, 20)
    sequence.prefill([first[-1], 11, 12, 13])
    second = generate(sequence, 50)
    assert trace.picked == first + second
    assert trace.sequence == PROMPT + first + [11, 12, 13] + second


@pytest.mark.one_in(2)
@every_fixture
def test_rewind_is_the_oracles(folder: Path) -> None:
    actions: list[Action] = [("append", PROMPT), ("generate", 70), ("rewind", 12), ("append", [3]), ("generate", 8)]
    trace = oracle.drive(folder, actions)
    sequence = ReferenceModel(folder).sequence()
    sequence.prefill(PROMPT)
    first = generate(sequence, 70)
    sequence.rewind(12)
    sequence.prefill([3])
    assert trace.picked == first + generate(sequence, 8)


@every_fixture
def test_the_oracle_rewound_picks_the_same_again(folder: Path) -> None:
    whole = oracle.greedy(folder, PROMPT, 30)
    actions: list[Action] = [("append", PROMPT), ("generate", 30), ("rewind", 12), ("generate", 10)]
    trace = oracle.drive(folder, actions)
    assert trace.picked == whole + whole[7:17]
    assert trace.sequence == PROMPT + whole[:17]


def test_the_oracle_ends_at_an_end_of_sequence_id_and_goes_on_without_it(tmp_path: Path) -> None:
    whole = oracle.greedy(LLAMA, PROMPT, 10)
    assert whole.index(whole[4]) == 4
    folder = with_eos(LLAMA, whole[4], tmp_path)
    ended = oracle.drive(folder, [("append", PROMPT), ("generate", 10)])
    assert (ended.picked, ended.sequence, ended.done) == (whole[:5], PROMPT + whole[:4], True)
    longer = oracle.drive(folder, [("append", PROMPT), ("generate", 10), ("append", [17, 18]), ("generate", 6)])
    assert longer.picked[5:] == oracle.greedy(folder, [*PROMPT, *whole[:4], 17, 18], 6)


def test_the_oracle_ends_at_max_length() -> None:
    trace = oracle.drive(LLAMA, [("append", PROMPT), ("generate", 10)], max_length=8)
    assert trace.done
    assert len(trace.sequence) == 8


def test_the_oracles_memory_depends_on_the_folders_content(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(LLAMA, folder)
    before = oracle.greedy(folder, PROMPT, 5)
    shutil.copyfile(LLAMA.parent / "nano-shape" / "model.onnx.data", folder / "model.onnx.data")
    data = bytearray((folder / "model.onnx.data").read_bytes())
    data[: 64 * 4 * 512] = np.random.default_rng(0).normal(size=64 * 512).astype(np.float32).tobytes()
    (folder / "model.onnx.data").write_bytes(data)
    assert oracle.greedy(folder, PROMPT, 5) != before


def test_the_greedy_runs_of_the_fixtures_vary() -> None:
    for folder in FIXTURES:
        ids = oracle.greedy(folder, PROMPT, 96)
        assert len(set(ids)) > 30
        assert max(ids.count(token) for token in ids) < 12


def test_a_rewound_sequence_equals_a_fresh_one() -> None:
    model = ReferenceModel(LLAMA)
    rewound, fresh = model.sequence(), model.sequence()
    rewound.prefill([*PROMPT, *range(100, 170)])
    rewound.rewind(3)
    rewound.prefill([20, 21])
    fresh.prefill([*PROMPT[:3], 20, 21])
    np.testing.assert_allclose(np.array(rewound.logits()), np.array(fresh.logits()), atol=1e-5)
    for layer in range(2):
        for kind in ("key", "value"):
            assert rewound.cache(layer, kind).shape == (2, 5, 16)
            np.testing.assert_allclose(rewound.cache(layer, kind), fresh.cache(layer, kind), atol=1e-5)


def test_two_sequences_do_not_disturb_each_other() -> None:
    model = ReferenceModel(LLAMA)
    one, other = model.sequence(), model.sequence()
    one.prefill(PROMPT)
    other.prefill([300, 301])
    picked: tuple[list[int], list[int]] = ([], [])
    for _ in range(10):
        for sequence, ids in zip((one, other), picked, strict=True):
            ids.append(pick(sequence))
            sequence.decode(ids[-1])
    assert picked[0] == oracle.greedy(LLAMA, PROMPT, 10)
    assert picked[1] == oracle.greedy(LLAMA, [300, 301], 10)


async def test_the_decoder_picks_the_oracles_ids() -> None:
    decoder = await ReferenceModel(LLAMA).decoder(64)
    decoder.set_search(GREEDY)
    await decoder.prefill(PROMPT, 0)
    assert [(await decoder.submit(1, sample_first=step == 0)).ids[0] for step in range(20)] == oracle.greedy(
        LLAMA, PROMPT, 20
    )


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    sequence = ReferenceModel(LLAMA).sequence(8)
    with pytest.raises(PromptError, match=r"the prompt is empty"):
        sequence.prefill([])
    sequence.prefill(PROMPT)
    with pytest.raises(PromptError, match=r"4 tokens after 5 exceed the cache's 8 positions"):
        sequence.prefill([1, 2, 3, 4])
    with pytest.raises(PromptError, match=r"cannot rewind to 6; the sequence has 5 tokens"):
        sequence.rewind(6)
    sequence.close()
    with pytest.raises(ClosedError, match=r"this sequence was closed"):
        sequence.prefill([1])


def test_a_missing_or_truncated_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"genai_config\.json: cannot be read \(No such file or directory\)"):
        ReferenceModel(tmp_path)
    folder = tmp_path / "model"
    shutil.copytree(LLAMA, folder)
    data = (folder / "model.onnx.data").read_bytes()
    (folder / "model.onnx.data").write_bytes(data[:-1])
    with pytest.raises(ModelFileError, match=r"onnxruntime cannot load it"):
        ReferenceModel(folder)
    (folder / "model.onnx.data").unlink()
    with pytest.raises(ModelFileError, match=r"model\.onnx\.data: cannot be read"):
        ReferenceModel(folder)
    (folder / "model.onnx").unlink()
    with pytest.raises(ModelFileError, match=r"model\.onnx: cannot be read"):
        ReferenceModel(folder)


def test_a_closed_model_makes_no_sequences() -> None:
    model = ReferenceModel(LLAMA)
    assert model.healthy()
    asyncio.run(model.close())
    assert not model.healthy()
    with pytest.raises(ClosedError, match=r"this model was closed"):
        model.sequence()
