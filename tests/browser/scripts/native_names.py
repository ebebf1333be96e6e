"""Bad input by onnxruntime-genai's names, and tensors of the last run: tells what each call came to, as JSON.

argv: the model's folder, and the execution provider.
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime_genai as og

PROMPT = [299, 310, 10, 80, 281]


def loaded(folder: str, provider: str) -> Any:
    config = og.Config(folder)
    config.clear_providers()
    config.append_provider(provider)
    return og.Model(config)


def generator(tokens: Any = PROMPT, guidance: Any = None, **options: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(**({"max_length": 32} | options))
    if guidance is not None:
        params.set_guidance(*guidance)
    made = og.Generator(model, params)
    if tokens is not None:
        made.append_tokens(tokens)
    return made


model = loaded(*sys.argv[1:3])
CASES: dict[str, Any] = {
    "top_p beyond 1": lambda: generator(do_sample=True, top_p=1.5),
    "an unknown option": lambda: generator(foo=1),
    "an option of another type": lambda: generator(top_k="5"),
    "rows of another number": lambda: generator([[1, 2], [3, 4]]),
    "rows of different length": lambda: generator([[1, 2], [3]], batch_size=2),
    "a float for a token": lambda: generator([1.5]),
    "text for a token": lambda: generator(["5"]),
    "a token beyond the vocabulary": lambda: generator([99999]),
    "an empty batch": lambda: generator([], batch_size=2),
    "no texts": lambda: og.Tokenizer(model).encode_batch([]),
    "rows of nothing": lambda: generator(np.zeros((2, 0), np.int32), batch_size=2),
    "logits of another shape": lambda: generator().set_logits(np.zeros(5, np.float32)),
    "a tensor of text": lambda: og.Tensor(np.array(["a"])),
    "a rewind past the start": lambda: generator().rewind_to(-1),
    "a rewind past the end": lambda: generator().rewind_to(33),
    "a rewind of several rows": lambda: generator([[5, 6, 7], [8, 9, 10]], batch_size=2).rewind_to(2),
    "an adapter that is not there": lambda: og.Adapters(model).load("/nothing.onnx_adapter", "a"),
    "a grammar of another kind": lambda: generator(guidance=("foo", "a")),
    "a grammar that cannot be compiled": lambda: generator(guidance=("regex", "(a")).generate_next_token(),
    "a stop string that cannot occur": lambda: generator(stop_strings=["</s>"]),
    "too many beams": lambda: generator(num_beams=33),
    "too many prompts": lambda: generator(batch_size=33),
    "more sequences than beams": lambda: generator(num_beams=2, num_return_sequences=3),
    "beams that are drawn": lambda: generator(num_beams=2, do_sample=True),
    "an output that is not there": lambda: generator().get_output("nothing"),
    "an input of images": lambda: generator().set_model_input("pixel_values", np.zeros(1)),
}

told: dict[str, Any] = {}
kept = generator()
for name, case in CASES.items():
    try:
        case()
        told[name] = "taken"
    except Exception as error:
        told[name] = [type(error).__name__, str(error), isinstance(error, RuntimeError | TypeError)]

WRONG: tuple[Any, ...] = (
    lambda: kept.append_tokens(["5"]),
    lambda: kept.rewind_to(40),
    lambda: kept.get_output("nothing"),
)
# A generator whose calls raise goes on as if they had not been made.
for wrong in WRONG:
    try:
        wrong()
    except RuntimeError:
        kept.generate_next_token()
answer = kept.get_sequence(0)[len(PROMPT) :].tolist()

tensors: dict[str, Any] = {}
RUNS: tuple[Any, ...] = ((PROMPT, 2, {}), ([[5, 6, 7], [8, 9, 10]], 0, {"batch_size": 2}))
for tokens, picks, options in RUNS:
    one = generator(tokens, **options)
    for _ in range(picks):
        one.generate_next_token()
    for name in ("present.0.key", "present.1.value", "logits"):
        value = one.get_output(name)
        tensors[f"{name} of {len(value)}"] = [str(value.dtype), list(value.shape), value.ravel().round(4).tolist()]
print(json.dumps({"told": told, "answer": answer, "tensors": tensors}))
