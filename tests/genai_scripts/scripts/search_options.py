"""The values of search options that the native package takes, and what it refuses."""

import onnxruntime_genai as og
from common import arguments, load

args = arguments("search options")
model = load(args, '{"search": {"repetition_penalty": 1.1, "past_present_share_buffer": true, "max_length": 32}}')
tokenizer = og.Tokenizer(model)
params = og.GeneratorParams(model)
print(params.get_search_options())
for options in (
    {"temperature": 0, "do_sample": True},
    {"top_k": 1.0, "do_sample": True},
    {"chunk_size": 0, "max_length": 20.0},
    {"repetition_penalty": 1.3, "min_length": 10},
    {"top_k": 5.5},
    {"top_p": 1.5, "do_sample": True},
    {"temperature": "hot"},
    {"max_length": 10**6},
    {"no_such_option": 1},
):
    params = og.GeneratorParams(model)
    try:
        params.set_search_options(**options)
        generator = og.Generator(model, params)
        generator.append_tokens(tokenizer.encode("def fibonacci(n):"))
        for _ in range(6):
            generator.generate_next_token()
        print(options, generator.get_sequence(0).tolist())
    except RuntimeError as error:
        print(options, "is refused:", isinstance(error, RuntimeError))
