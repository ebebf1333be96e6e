"""Bad input by onnxruntime-genai's names is refused in the page, and get_output shows there what it shows natively."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan_host.testing.harness import Harness

SCRIPT = Path(__file__).parent / "scripts/native_names.py"
MODEL = Path(__file__).parents[1] / "fixtures/nano-llama"
REFUSED = {
    "top_p beyond 1": ("OptionError", "top_p is 1.5; it must be from 0 to 1"),
    "an unknown option": ("OptionError", "'foo' is not a search option; the options are"),
    "an option of another type": ("OptionError", "top_k is '5'; it must be a number"),
    "rows of another number": ("PromptError", "2 rows of tokens were given; batch_size is 1"),
    "rows of different length": ("PromptError", "the rows have 2, 1 tokens; pad them"),
    "a float for a token": ("PromptError", "token 0 is 1.5; token ids are integers"),
    "text for a token": ("PromptError", "token 0 is '5'; token ids are integers"),
    "a token beyond the vocabulary": ("PromptError", "token 0 is 99999; ids go from 0 to 511"),
    "an empty batch": ("PromptError", "append at least one"),
    "no texts": ("OptionError", "there are no texts; give at least one"),
    "rows of nothing": ("PromptError", "append at least one"),
    "logits of another shape": ("OptionError", "5 numbers were given; give 512"),
    "a tensor of text": ("BindingError", "they must be one of float32"),
    "a rewind past the start": ("OptionError", "rewind_to(-1): the sequence has 5 tokens"),
    "a rewind past the end": ("OptionError", "rewind_to(33): the sequence has 5 tokens"),
    "a rewind of several rows": ("OptionError", "rewinds only to 0; make a generator for each"),
    "an adapter that is not there": (None, "/nothing.onnx_adapter"),
    "a grammar of another kind": ("OptionError", "foo (only json_schema, regex"),
    "a grammar that cannot be compiled": ("GuidanceError", "column 1: the group is not closed"),
    "a stop string that cannot occur": ("OptionError", "give their ids as stop_token_ids"),
    "too many beams": ("OptionError", "num_beams is 33; it must be from 1 to 32"),
    "too many prompts": ("OptionError", "batch_size is 33; it must be from 1 to 32"),
    "more sequences than beams": ("OptionError", "num_return_sequences (3) must be in [1, 2]"),
    "beams that are drawn": ("OptionError", "set do_sample=False, or num_beams=1"),
    "an output that is not there": ("OptionError", "the outputs are logits, present.%d.key"),
    "an input of images": ("UnsupportedModelError", "'llama' takes only tokens"),
}


@pytest.fixture(scope="module")
def native() -> Any:
    """The script's output with onnxruntime-genai on CPython."""
    command = [sys.executable, "-P", str(SCRIPT), str(MODEL), "cpu"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("provider", ["cpu", "webgpu"])
def test_bad_input_and_tensors(harness: Harness, native: Any, provider: str) -> None:
    done = harness.exec(SCRIPT.read_text(), argv=["/models/nano-llama/", provider])
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["told"].keys() == REFUSED.keys()
    for name, (kind, part) in REFUSED.items():
        told = found["told"][name]
        assert told != "taken", name
        assert told[0] == (kind or told[0]), name
        assert part in told[1], name
        assert told[2], f"{name}: no RuntimeError"
    # The native package takes '5' for 5 where Capstan refuses it and goes on.
    assert found["answer"] == [333, 344, 212]
    assert found["tensors"].keys() == native["tensors"].keys()
    for name, (dtype, shape, values) in native["tensors"].items():
        assert found["tensors"][name][:2] == [dtype, shape], name
        np.testing.assert_allclose(found["tensors"][name][2], values, atol=2e-3, err_msg=name)
