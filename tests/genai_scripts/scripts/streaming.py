"""Show a text while it is generated, token by token."""

import onnxruntime_genai as og
from common import arguments, load

args = arguments("stream a text", max_length=48)
model = load(args)
tokenizer = og.Tokenizer(model)
stream = tokenizer.create_stream()
params = og.GeneratorParams(model)
params.set_search_options(max_length=args.max_length, do_sample=False)

generator = og.Generator(model, params)
generator.append_tokens(tokenizer.encode("class Graph:\n"))
count = 0
try:
    while not generator.is_done():
        generator.generate_next_token()
        new_token = generator.get_next_tokens()[0]
        print(repr(stream.decode(new_token)), end=" ", flush=True)
        count += 1
except KeyboardInterrupt:
    print("interrupted")
print()
print(f"{count} tokens, {generator.token_count()} with the prompt")
del generator
