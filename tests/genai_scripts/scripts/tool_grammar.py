"""Tools in the system message, as Phi-4 has them, and a call of one of them between special tokens."""

import json

import onnxruntime_genai as og
from common import arguments, load

SPACES = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
    "{% if 'tools' in m %}{{ '[tools]' + m['tools'] + '[/tools]' }}{% endif %}. {% endfor %}"
    "{% if tools %}{% for tool in tools %}{{ tool['name'] }}: {{ tool['parameters'] }}; {% endfor %}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"what {name} is for", "parameters": schema}}


def call_of(function):
    properties = {"name": {"const": function["name"]}, "parameters": function["parameters"]}
    return {
        "description": function["description"],
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TOOLS = [tool("weather", city={"enum": ["Rome", "Oslo"]}), tool("clock", zone={"type": "string", "maxLength": 3})]
CALLS = {
    "x-guidance": SPACES,
    "type": "array",
    "items": {"anyOf": [call_of(each["function"]) for each in TOOLS]},
    "minItems": 1,
    "maxItems": 1,
}
ALONE = f"start: functioncall\nfunctioncall: %json {json.dumps(CALLS)}"
BETWEEN = f"start: toolcall\ntoolcall: <pad> functioncall <pad>\nfunctioncall: %json {json.dumps(CALLS)}"
EITHER = f"start: TEXT | toolcall\nTEXT: /[^{{<](.|\\n)*/\n{BETWEEN.partition(chr(10))[2]}"

args = arguments("call a tool", max_length=400)
model = load(args)
tokenizer = og.Tokenizer(model)
system = {"role": "system", "content": "You are 'helpful', always.", "tools": json.dumps(TOOLS)}
messages = json.dumps([system, {"role": "user", "content": "What's the 'weather'?"}])
for tools in ("", json.dumps(TOOLS)):
    prompt = tokenizer.apply_chat_template(messages=messages, tools=tools, template_str=TEMPLATE)
    print(prompt)
pad = tokenizer.to_token_id("<pad>")
for kind, grammar in (
    ("json_schema", json.dumps(CALLS)),
    ("lark_grammar", ALONE),
    ("lark_grammar", BETWEEN),
    ("lark_grammar", EITHER),
):
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=args.max_length)
    params.set_guidance(kind, grammar)
    generator = og.Generator(model, params)
    generator.append_tokens([5, 6, 7])
    while not generator.is_done() and generator.token_count() < 120:
        generator.generate_next_token()
    tokens = generator.get_sequence(0)[3:].tolist()
    print(kind, tokens.count(pad), "delimiters")
    text = tokenizer.decode([token for token in tokens if token != pad])
    if grammar is EITHER and pad not in tokens:
        print("text", text[:1] not in "{<")
        continue
    (call,) = json.loads(text)
    print(sorted(call), call["name"] in ("weather", "clock"), text == json.dumps([call], ensure_ascii=False))
