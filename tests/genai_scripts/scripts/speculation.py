"""Prompt lookup: drafts from what the prompt says already; the tokens are those of plain greedy search."""

import onnxruntime_genai as og
from common import arguments, load

args = arguments("speculate", ngram_size=2)
model = load(args)
tokenizer = og.Tokenizer(model)
found = []
for ngram_size in (0, args.ngram_size):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=200)
    params.set_speculative_options(ngram_size=ngram_size, max_draft_tokens=4)
    print(params.get_speculative_options()["ngram_size"])
    generator = og.Generator(model, params)
    generator.append_tokens(tokenizer.encode("def f(x):\n    return x\n\ndef g(x):\n    return x\n\ndef h(x):"))
    while not generator.is_done():
        generator.generate_next_token()
    found.append(generator.get_sequence(0).tolist())
    stats = generator.get_speculative_stats()
    print("drafts were tried:", stats["draft_tokens_proposed"] > 0)
print(found[0])
print("the same:", found[0] == found[1])
