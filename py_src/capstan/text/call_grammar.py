"""Makes grammars that force an answer to be a call of one of the tools, or any text and at most one call, in the
notation of the model's family.

Each tool's parameters are a separate JSON schema within the grammar, so that their references keep their meaning.
Arguments that a family writes one by one must fit the schema of each, with its references moved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .answer_formats import ANY_MODEL, AnswerFormat
from .call_forms import CallForm, Functions, Parameters
from .call_values import referred, types_of

__all__ = ["any_in_json", "call_grammar", "moved"]

ANNOTATIONS = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions"}
OBJECT_KEYWORDS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
STRING_KEYWORDS = ANNOTATIONS | {"type", "enum", "const", "minLength", "maxLength"}
COMBINED = {"$ref", "allOf", "anyOf", "oneOf", "enum", "const"}
HERE = "arguments"
MOST_REFERENCES = 20


def call_grammar(
    form: AnswerFormat, functions: Functions, special: Mapping[str, int], *, begun: bool, optional: bool = False
) -> str:
    """The Lark grammar of one call of one of the functions, with `optional` of a text that such a call may end.
    `special` are the ids of special tokens by their texts; after a prompt that ended within the reasoning (`begun`) the
    reasoning comes first. A function whose parameters cannot be expressed in the family's own form is called in JSON
    (ANY_MODEL).
    """
    lines: list[str] = []
    calls: list[str] = []
    in_json: list[str] = []
    for number, (name, given) in enumerate(functions.items()):
        schema = of_object(given)
        own = form_of(form, schema)
        found = rule(own, f"call_{number}", name, schema, special, lines)
        (in_json if begins_json(own) else calls).append(found)
    if optional:
        start = optional_call(form, calls, in_json, special, begun=begun)
    else:
        start = required_call(form, [*calls, *in_json], special, begun=begun)
    return "\n".join([f"start: {start}", *lines])


def any_in_json(form: AnswerFormat, functions: Functions) -> bool:
    """Whether a call of one of the functions is JSON without a mark before it."""
    return any(begins_json(form_of(form, of_object(schema))) for schema in functions.values())


def of_object(schema: Any) -> Any:
    """The schema of a function's arguments, which are an object."""
    if schema is None or (isinstance(schema, Mapping) and not schema.keys() & {"type", *COMBINED}):
        return {"type": "object", **(schema or {})}
    return schema


def form_of(form: AnswerFormat, schema: Any) -> CallForm:
    """The form in which a function with these parameters is called."""
    own = form.calls
    if own is not None and own.parameters is not None and not is_plain(schema, schema, own.parameters):
        own = None
    return own or ANY_MODEL


def begins_json(form: CallForm) -> bool:
    return form.before[0].startswith("{")


def required_call(form: AnswerFormat, calls: Sequence[str], special: Mapping[str, int], *, begun: bool) -> str:
    """The first rule for an answer that is one of the calls, after its reasoning."""
    before: list[str] = []
    if begun:
        before = [f"/{without(form.thinking[1])}/", *pieces((form.thinking[1],), "", special), r"/[ \n]{0,4}/"]
    elif form.channels:
        first = pieces(("<|channel|>", "analysis", "<|message|>"), "", special)
        last = pieces(("<|end|>", "<|start|>", "assistant"), "", special)
        before = [f"( {' '.join([*first, f'/{without(form.thinking[1])}/', *last])} )?"]
    return " ".join([*before, f"( {' | '.join(calls)} )"])


def optional_call(
    form: AnswerFormat, calls: Sequence[str], in_json: Sequence[str], special: Mapping[str, int], *, begun: bool
) -> str:
    """The first rule for an answer that is reasoning, then a text, then at most one of the calls, each of which is
    optional. A call in JSON has no text before it. No text has the mark of a call or of reasoning.
    """
    if form.channels:
        final = [*pieces(("<|channel|>", "final", "<|message|>"), "", special), f"/{without('<|end|>')}/"]
        return required_call(form, [*calls, *in_json, " ".join(final)], special, begun=begun)
    opening, closing = form.thinking
    thought = " ".join([f"/{without(closing)}/", *pieces((closing,), "", special)])
    before = thought if begun else f"( {' '.join([*pieces((opening,), '', special), thought])} )?"
    marks = [opening]
    if calls and form.calls is not None:
        marks.append(form.calls.before[0])
        if marks[0][0] != marks[1][0]:
            # Mistral's models without marks of reasoning.
            before, marks = thought if begun else "", marks[1:]
    # White space before the text is apart, since a call in JSON may follow it as well.
    text = f"( /{beginning(marks, json=not in_json)}/ )?"
    after = f"{text} ( {' | '.join(calls)} )?" if calls else text
    return f"{before} /[ \\t\\r\\n]{{0,4}}/ ( {' | '.join([*in_json, after])} )"


def rule(form: CallForm, rule_name: str, name: str, schema: Any, special: Mapping[str, int], lines: list[str]) -> str:
    """Add the rule of a call to the lines; returns its name."""
    before, after = (pieces(texts, name, special) for texts in (form.before, form.after))
    if form.parameters is None:
        inner = [f"%json {json.dumps(schema)}"]
    else:
        inner = [parameter_rules(form.parameters, rule_name, schema, schema, special, lines)]
    lines.append(f"{rule_name}: {' '.join([*before, *inner, *after])}")
    return rule_name


def parameter_rules(
    form: Parameters, place: str, schema: Mapping[str, Any], root: Any, special: Mapping[str, int], lines: list[str]
) -> str:
    """Add the rules of arguments that are written one by one, in the order of the schema; returns the first rule's
    name. Names of rules begin with `place`, and references are resolved in `root`.
    """
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    between = quoted(form.between) if form.between else ""
    for number, (key, inner) in enumerate(properties.items()):
        before, after = (pieces((text,), key, special) for text in (form.before, form.after))
        own = " ".join([*before, value(form, f"{place}_{number}", inner, root, special, lines), *after])
        following = f"{place}_{number + 1}"
        for kind, joined in (("first", own), ("more", f"{between} {own}")):
            ways = [f"{joined} {following}_more", *([] if key in required else [f"{following}_{kind}"])]
            lines.append(f"{place}_{number}_{kind}: {' | '.join(ways)}")
    lines.extend(f'{place}_{len(properties)}_{kind}: ""' for kind in ("first", "more"))
    return f"{place}_0_first"


def value(form: Parameters, place: str, schema: Any, root: Any, special: Mapping[str, int], lines: list[str]) -> str:
    """The expression for a parameter's value, in the family's form if possible, else in JSON."""
    if form.quote is not None and types_of(schema, root) == {"string"}:
        return string(form, resolved(schema, root), special)
    if isinstance(schema, Mapping) and schema.keys() <= ANNOTATIONS | {"type"} and schema.get("type") == "boolean":
        return f"( {' | '.join(map(quoted, form.words))} )"
    if form.quote and is_plain(schema, root, form) and schema.get("properties"):
        return f'"{{" {parameter_rules(form, place, schema, root, special, lines)} "}}"'
    if form.quote and is_plain_list(schema, root, form):
        lines.append(f"{place}_item: {value(form, f'{place}_of', schema['items'], root, special, lines)}")
        return f'"[" ( {place}_item ( "," {place}_item )* )? "]"'
    document = moved(schema, f"#/$defs/{HERE}")
    if document != schema:
        document = {**document, "$defs": {**document.get("$defs", {}), HERE: moved(root, f"#/$defs/{HERE}")}}
    return f"%json {json.dumps(document)}"


def string(form: Parameters, schema: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """The expression for a plain string."""
    quotes = pieces((form.quote or "",), "", special)
    fixed = [schema["const"]] if "const" in schema else schema.get("enum")
    if fixed is not None:
        inner = f"( {' | '.join(map(quoted, fixed))} )"
    elif "minLength" in schema or "maxLength" in schema:
        inner = f"/[^<]{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/"
    else:
        inner = f"/{without(form.quote or form.after.strip())}/"
    return " ".join([*quotes, inner, *quotes])


def is_plain(schema: Any, root: Any, form: Parameters) -> bool:
    """Whether parameters can be written one by one so that they fit the schema whenever each fits its own."""
    if not isinstance(schema, Mapping) or not schema.keys() <= OBJECT_KEYWORDS or schema.get("type") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    if set(map(str, required)) - set(properties) or not all(re.fullmatch(r"[\w.\-]+", key) for key in properties):
        return False
    return all(is_plain_value(each, root, form) for each in properties.values())


def is_plain_list(schema: Any, root: Any, form: Parameters) -> bool:
    if not isinstance(schema, Mapping) or schema.get("type") != "array":
        return False
    items = schema.get("items")
    return schema.keys() <= ANNOTATIONS | {"type", "items"} and bool(items) and is_plain_value(items, root, form)


def is_plain_value(schema: Any, root: Any, form: Parameters) -> bool:
    """Whether a plain value can be made to fit its schema; a string without quotes cannot have a pattern."""
    if form.quote is None or types_of(schema, root) != {"string"}:
        return True
    schema = resolved(schema, root)
    fixed = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not isinstance(fixed, list) or not all(isinstance(schema.get(n, 0), int) for n in ("minLength", "maxLength")):
        return False
    return schema.keys() <= STRING_KEYWORDS and all(isinstance(each, str) and "<" not in each for each in fixed)


def resolved(schema: Any, root: Any) -> Any:
    """The target of a reference."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping) or not schema.keys() <= ANNOTATIONS | {"$ref"} or "$ref" not in schema:
            break
        schema = referred(schema["$ref"], root)
    return schema if isinstance(schema, Mapping) else {"$ref": ""}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def pieces(texts: Sequence[str], name: str, special: Mapping[str, int]) -> list[str]:
    """The expressions of a form's pieces, with NAME filled in."""
    found = []
    for text in texts:
        if text in special:
            found.append(f"<[{special[text]}]>")
        elif text:
            found.append(quoted(text.replace("NAME", name)))
    return found


def without(mark: str) -> str:
    """A regular expression for texts that do not contain the mark. The first character of the mark must occur in it
    only once. Each next character distinguishes a beginning of the mark from other text, which an automaton for the GPU
    requires.
    """
    first, rest = in_set(mark[0]), mark[1:]
    inner = rf"[^{first}{in_set(rest[-1])}]"
    for character in reversed(rest[:-1]):
        inner = rf"(?:[^{first}{in_set(character)}]|{escaped(character)}{inner})"
    return rf"(?:[^{first}]|{escaped(mark[0])}+{inner})*"


def no_end(rests: Sequence[str], first: str) -> str:
    """The expression for what follows the beginning of marks, if none of them follows: `rests` are their ends."""
    following = sorted({rest[0] for rest in rests})
    ways = [f"[^{in_set(first)}{''.join(map(in_set, following))}]"]
    for character in following:
        inner = [rest[1:] for rest in rests if rest[0] == character]
        if all(inner):
            ways.append(escaped(character) + no_end(inner, first))
    return f"(?:{'|'.join(ways)})"


def beginning(marks: Sequence[str], *, json: bool) -> str:
    """The expression for a text that begins with no white space, nor with `{` unless `json`, and has none of the
    marks.
    """
    (first,) = {mark[0] for mark in marks}
    marked = f"{escaped(first)}+{no_end([mark[1:] for mark in marks], first)}"
    excluded = r" \t\r\n" + ("" if json else "{")
    return f"(?:[^{in_set(first)}{excluded}]|{marked})(?:[^{in_set(first)}]|{marked})*"


def escaped(character: str) -> str:
    return r"\/" if character == "/" else r"\n" if character == "\n" else re.escape(character)


def in_set(character: str) -> str:
    return "\\" + character if character in r"\]^-/[" else character


SCHEMAS_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
SCHEMAS = {
    *("items", "additionalItems", "prefixItems", "contains", "unevaluatedItems", "additionalProperties"),
    *("unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
}


def moved(schema: Any, place: str) -> Any:
    """The schema with each reference into its own document (`#`, `#/$defs/Node`) turned into one for a document that
    has it at `place`, such as `#/$defs/arguments`. Names and values that look like references are not changed.
    """
    if isinstance(schema, list):
        return [moved(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            found[name] = place + value[1:]
        elif name in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            found[name] = {key: moved(inner, place) for key, inner in value.items()}
        else:
            found[name] = moved(value, place) if name in SCHEMAS else value
    return found
