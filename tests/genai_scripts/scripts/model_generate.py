"""Complete a prompt, and tell how many tokens that took."""

import onnxruntime_genai as og
from common import arguments, load

args = arguments("complete a prompt", prompt="def fibonacci(n):", max_length=40)
model = load(args)
tokenizer = og.Tokenizer(model)
tokens = tokenizer.encode(args.prompt)
print(f"the prompt has {len(tokens)} tokens: {tokens.tolist()}")

params = og.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=args.max_length)
generator = og.Generator(model, params)
generator.append_tokens(tokens)
while not generator.is_done():
    generator.generate_next_token()
sequence = generator.get_sequence(0)
print(f"{len(sequence)} tokens, {sequence.dtype}: {sequence.tolist()}")
print(repr(tokenizer.decode(sequence)))
