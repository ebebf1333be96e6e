"""Go back in a sequence and go on from there, with other tokens or the same."""

import numpy as np
import onnxruntime_genai as og
from common import arguments, load

args = arguments("rewind")
model = load(args)
tokenizer = og.Tokenizer(model)
params = og.GeneratorParams(model)
params.set_search_options(max_length=40)
generator = og.Generator(model, params)
generator.append_tokens(tokenizer.encode("def fibonacci(n):"))


def more(count):
    for _ in range(count):
        if generator.is_done():
            break
        generator.generate_next_token()
    return generator.get_sequence(0)


first = more(20)
print("first", first.tolist())
generator.rewind_to(10)
print("rewound", generator.token_count(), "the same again:", bool(np.array_equal(more(14), first[:25])))
generator.rewind_to(6)
generator.append_tokens(np.array([42, 43], dtype=np.int32))
print("other tokens", more(5).tolist())
generator.rewind_to(0)
generator.append_tokens(tokenizer.encode("import"))
print("from the start", more(5).tolist())
try:
    generator.rewind_to(1000)
except RuntimeError:
    print("cannot go forward")
