"""Outputs that fit a grammar: expressions, Lark rules, a schema's values, a call of one of the tools."""

import json

import onnxruntime_genai as og
from common import arguments, load

TOOLS = {"add": ["a", "b"], "sub": ["x", "y"]}
CALLS = " | ".join(
    f'"{name}(" ({" | ".join(json.dumps(value) for value in values)}) ")"' for name, values in TOOLS.items()
)
GRAMMARS = [
    ("regex", "[0-9]{3}-[a-z]{3,5}"),
    ("regex", "(yes|no), [A-Z][a-z]{2,6}\\."),
    ("lark_grammar", 'start: "[" item ("," item)* "]"\nitem: /[a-c]{1,2}/ | NUMBER\nNUMBER: /[1-9][0-9]?/'),
    ("lark_grammar", f"start: call\ncall: {CALLS}"),
    ("json_schema", json.dumps({"enum": ["red", "green", "blue", 7, None]})),
]

args = arguments("guide the output", max_length=40)
model = load(args)
tokenizer = og.Tokenizer(model)
for kind, data in GRAMMARS:
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=args.max_length)
    params.set_guidance(kind, data)
    generator = og.Generator(model, params)
    generator.append_tokens([5, 6, 7])
    count = 0
    while not generator.is_done():
        generator.generate_next_token()
        count += 1
    tokens = generator.get_sequence(0)[3:]
    print(kind, count, tokens.tolist(), repr(tokenizer.decode(tokens)))
for kind, data in (("yaml", "a: b"), ("regex", "")):
    params = og.GeneratorParams(model)
    try:
        params.set_guidance(kind, data)
        og.Generator(model, params)
        print("taken")
    except Exception as error:
        print("refused:", str(error)[:30])
