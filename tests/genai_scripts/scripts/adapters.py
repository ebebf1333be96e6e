"""LoRA adapters: load some, choose one for each generator, unload them."""

from pathlib import Path

import numpy as np
import onnxruntime_genai as og
from common import arguments, load

args = arguments("LoRA adapters", adapters="first,queries")
model = load(args)
tokenizer = og.Tokenizer(model)
prompt = tokenizer.encode("def fibonacci(n):")
names = args.adapters.split(",")

adapters = og.Adapters(model)
for name in names:
    adapters.load(str(Path(args.model_path) / f"{name}.onnx_adapter"), name)


def generated(*chosen):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=24)
    generator = og.Generator(model, params)
    for name in chosen:
        generator.set_active_adapter(adapters, name)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return generator


base = generated().get_sequence(0)
print("without", base.tolist())
for name in names[:1]:
    generator = generated(name)
    print(name, generator.get_sequence(0).tolist())
    try:
        adapters.unload(name)
    except RuntimeError:
        print(name, "is in use")
    del generator
print("the same again:", bool(np.array_equal(generated().get_sequence(0), base)))

params = og.GeneratorParams(model)
params.set_search_options(max_length=24)
generator = og.Generator(model, params)
generator.append_tokens(prompt)
for _ in range(5):
    generator.generate_next_token()
generator.set_active_adapter(adapters, names[0])
while not generator.is_done():
    generator.generate_next_token()
print("from the fifth token on", generator.get_sequence(0).tolist())
del generator

for name in names:
    adapters.unload(name)
try:
    generated(names[0])
except RuntimeError:
    print(names[0], "is unloaded")
