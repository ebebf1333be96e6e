"""Several prompts of different length in one batch."""

import onnxruntime_genai as og
from common import arguments, load

PROMPTS = ["def fibonacci(n):", "class A", "import os\nimport sys", "x"]
args = arguments("complete several prompts", max_length=24)
model = load(args)
tokenizer = og.Tokenizer(model)
tokens = tokenizer.encode_batch(PROMPTS)
print("batch", tokens.shape(), tokens.as_numpy().tolist())

params = og.GeneratorParams(model)
params.set_search_options(max_length=args.max_length, batch_size=len(PROMPTS))
generator = og.Generator(model, params)
generator.append_tokens(tokens)
while not generator.is_done():
    generator.generate_next_token()
print("last tokens", generator.get_next_tokens().tolist())
for i, prompt in enumerate(PROMPTS):
    print(f"{prompt!r}: {generator.get_sequence(i).tolist()}")
