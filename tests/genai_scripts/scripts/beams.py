"""Beam search, with the best sequences."""

import onnxruntime_genai as og
from common import arguments, load

args = arguments("beam search", num_beams=4, num_return_sequences=2, length_penalty=0.8)
model = load(args)
tokenizer = og.Tokenizer(model)
params = og.GeneratorParams(model)
params.set_search_options(
    max_length=24,
    num_beams=args.num_beams,
    num_return_sequences=args.num_return_sequences,
    length_penalty=args.length_penalty,
    early_stopping=True,
)
generator = og.Generator(model, params)
generator.append_tokens(tokenizer.encode("for i in range("))
while not generator.is_done():
    generator.generate_next_token()
for i in range(args.num_return_sequences):
    print(generator.get_sequence(i).tolist())
