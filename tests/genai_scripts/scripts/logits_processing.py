"""A logits processor in Python: only some tokens are allowed, and repetitions are pushed down."""

import numpy as np
import onnxruntime_genai as og
from common import arguments, load

args = arguments("process logits", tokens=16)
model = load(args)
tokenizer = og.Tokenizer(model)
params = og.GeneratorParams(model)
params.set_search_options(max_length=64)
generator = og.Generator(model, params)
generator.append_tokens(tokenizer.encode("values = ["))
seen = {}
for _ in range(args.tokens):
    logits = generator.get_logits()
    assert (logits.dtype, logits.ndim) == (np.float32, 3)
    scores = logits[0, -1].copy()
    for token, count in seen.items():
        scores[token] -= 4.0 * count
    scores[3:100] = -np.inf  # no single characters
    generator.set_logits(scores.reshape(logits.shape))
    generator.generate_next_token()
    token = int(generator.get_next_tokens()[0])
    seen[token] = seen.get(token, 0) + 1
print(generator.get_sequence(0).tolist())
print("most often", max(seen.values()), "single characters", sum(3 <= token < 100 for token in seen))
