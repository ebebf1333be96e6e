"""Chat templates and the values in them: what prints values, one expression a line, whole templates in the forms of
model families, and those that go on for ever; their text by Jinja2 itself, set up as transformers sets it up."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["CHATS", "ENDLESS", "TEMPLATES", "VARIABLES", "oracle", "told"]

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city: 'é' & <b>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"function": {"name": "weather", "arguments": {"city": "Köln", "days": 1, "exact": True, "at": None}}}
VARIABLES: dict[str, Any] = {
    "flag": True,
    "one": 1.0,
    "n": 7,
    "minus": -7,
    "big": 10**21,
    "small": 1e-7,
    "nested": {"a": 1, "b": [True, None, "x'y"], "c": {"d": 2.50}},
    "several": [1, 2.5, "é\n", False],
    "text": "héllo wörld",
    "empty": [],
    "bos_token": "<s>",
    "eos_token": "</s>",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi  \n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": [CALL]},
        {"role": "tool", "content": "12.0"},
        {"role": "user", "content": "Thanks"},
    ],
    "tools": [TOOL],
    "documents": None,
    "add_generation_prompt": True,
}

# ruff: noqa: E501, SIM905
TEMPLATES = r"""{{ flag }}|{{ none }}|{{ one }}|{{ nested }}|{{ several }}
{{ big }} {{ small }} {{ 1e16 }} {{ 1.5e3 }} {{ 1_000 }} {{ 0x1f }} {{ 123456789.123456789 }}
{{ 1/2 }} {{ 4/2 }} {{ 7//2 }} {{ minus//2 }} {{ minus%3 }} {{ 2**10 }} {{ 2**-1 }} {{ -n }}
{{ n + one }} {{ 3*'ab' }} {{ [1]*2 }} {{ [1] + [none] }} {{ 'a' + 'b' }}
{{ nested|tojson }} {{ several|tojson(indent=2) }} {{ nested|tojson(separators=(',', ':'), sort_keys=true) }}
{{ text|tojson }} {{ text|tojson(ensure_ascii=true) }} {{ '<é>'|tojson }}
{{ nested|string }} {{ 'x' ~ nested ~ flag ~ none ~ 1.0 }}
{{ several|join(', ') }} {{ [true, none]|join('/') }} {{ 'abc'|join('-') }}
{{ missing }}|{{ missing.x }}
{{ 'Order 12345678901 of %s' % 'x' }} {{ 'Order 12345678901 of {:>5}'.format('x') }} {{ '12345678901: %5.2f' | format(one) }}
{{ missing + 'a' }}
{{ missing is defined }} {{ messages[9] is defined }} {{ messages[0].nope }}
{{ text.upper() }} {{ text.title() }} {{ text.capitalize() }} {{ text.center(20) }} {{ text.zfill(14) }}
{{ text|title }} {{ text|center(20) }} {{ text|replace('l', 'L') }} {{ text|truncate(5) }} {{ text|wordcount }}
{{ '%s and %s'|format(flag, 1.0) }} {{ '%.2f' % 3.14159 }} {{ '{} {:>5} {a}'.format(flag, 1, a=nested) }}
{{ (1, 2) }} {{ (1,) }} {{ () }} {{ {} }} {{ [] }} {{ {1: 2, true: 3} }} {{ {'a': (1, 'x')} }}
{{ nested.items() }} {{ nested.keys() }} {{ nested|dictsort }} {{ nested|items|list }}
{{ range(3) }} {{ range(3)|list }} {{ range(9, 0, -3)|list }}
{{ 'a' in 'abc' }} {{ 1 in [1, 2] }} {{ 'a' in nested }} {{ 'z' not in nested }} {{ 1 < 2 < 3 }} {{ 1 == 1.0 }}
{{ '1' == 1 }} {{ [] == [] }} {{ true == 1 }} {{ nested == {'a': 1} }} {{ 'a' < 'b' }}
{% for x in several %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{% endfor %}
{% for x in several if x is string %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}
{% for x in empty %}{{ x }}{% else %}none{% endfor %}{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}
{% for x in range(9) %}{% if x == 2 %}{% continue %}{% elif x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [[1, [2, 3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}
{% macro m(a, b=2) %}{{ a }}-{{ b }}-{{ varargs }}-{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, 3, 4, z=5) }}
{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) m(none) %}<{{ x }}>{% endcall %}
{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1.0 %}{{ ns.a }} {{ ns }}
{% set x %}a{{ n }}b{% endset %}{{ x }}{% filter upper %}abc{{ flag }}{% endfilter %}{% with a=none %}{{ a }}{% endwith %}
{{ [3, 1, 2]|sort }} {{ ['b', 'A']|sort }} {{ [1, 2.5]|sum }} {{ [1, 2]|max }} {{ messages|map(attribute='role')|list }}
{{ [1, 0]|select|list }} {{ [1, 2, 3]|select('odd')|list }} {{ messages|selectattr('role', 'equalto', 'user')|list }}
{{ messages|groupby('role') }} {{ [1, 1, 2]|unique|list }} {{ [1, 2, 3]|batch(2, none)|list }} {{ [1, 2, 3]|slice(2)|list }}
{{ text[1:3] }} {{ text[::-1] }} {{ several[-1] }} {{ several[::2] }} {{ nested['a'] }} {{ nested.get('q') }}
{{ 'a,b'.split(',') }} {{ ' x '.strip() }} {{ 'xay'.strip('xy') }} {{ 'abc'.find('c') }} {{ text.partition('w') }}
{{ n is odd }} {{ one is float }} {{ one is integer }} {{ flag is boolean }} {{ nested is mapping }} {{ several is sequence }}
{{ 'x' if none }}|{{ 'x' if none else 'y' }} {{ none or 'b' }} {{ 0 or [] }} {{ 1 and 'q' }} {{ not none }}
{{ none|default('x') }} {{ missing|default('x') }} {{ ''|default('x', true) }} {{ missing|default(1700000000) }}
{{ 3.0|int }} {{ '3'|int + 1 }} {{ 'x'|int }} {{ '2.5'|float }} {{ 2.567|round(1) }} {{ 2.5|round }} {{ 7|round }}
{{ several|first }} {{ several|last }} {{ several|reverse|list }} {{ text|reverse }} {{ several|length }} {{ text|count }}
{{ 'a\nb'|indent }} {{ 'a\nb'|indent('> ') }} {{ '<a>'|e }} {{ '<a>x</a>'|striptags }} {{ 'a b'|urlencode }} {{ 'a b c'|wordwrap(3) }}
{{ dict(a=1, b=flag) }} {{ 'abc'|list }} {{ nested|xmlattr }} {{ 12345|filesizeformat }} {{ nested|pprint }}
{{ "it's" }} {{ ["it's", 'say "x"', 'both \' and "', 'é', '\n', '\\', '\x00'] }}
{{ text.encode('utf-8') }} {{ (5).bit_length() }} {{ 1.5.is_integer() }} {{ cycler('a', 'b').next() }} {{ joiner(',')() }}
  {% if flag %}  x
  {% endif %}
{%- raw %}{{ x }}{% endraw -%}  {# c #}  y
{{ raise_exception('no system here') }}
{{ 5 // 0 }}
{{ 'a' + 1 }}
{{ 'x'.format_map({'a': 1}) }} {{ '{a}'.format_map({'a': none}) }}
{{ several.append(1) }}
{{ ''.__class__ }}
{{ [].__class__.__base__.__subclasses__() }}
{% for %}
{{ strftime_now('%Y') }} {{ tools is none }} {{ documents is none }}""".split("\n")

CHATS = [
    # As Qwen's: tools by tojson, thoughts that are cut out of earlier answers, a backward search by a namespace.
    """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thought %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # As Llama's: a date, tools with an indent, arguments of a call as Python prints them.
    """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
<|start_header_id|>system<|end_header_id|>

Today Date: {{ date_string }}
{% if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}<|eot_id|>
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content | tojson if message.content is mapping or message.content is iterable else message.content }}
        {{- "<|eot_id|>" }}
    {%- elif 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|python_tag|>' + call.name + '.call(' }}
        {%- for name, value in call.arguments.items() %}
            {{- name + '=' ~ value }}
            {%- if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- ') ' ~ call.arguments ~ '<|eom_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # As Mistral's and Gemma's: loops with a filter, macros, blocks that are not stripped.
    """{%- macro shown(content) -%}
{%- if content is string -%}{{ content | trim }}
{%- else -%}{% for part in content if part.type == 'text' %}{{ part.text }}{% endfor %}
{%- endif -%}
{%- endmacro -%}
{{ bos_token }}{% for message in messages | rejectattr('role', 'equalto', 'tool') %}
{% set role = 'model' if message.role == 'assistant' else message.role %}
<start_of_turn>{{ role }}
  {{ shown(message.content) }}<end_of_turn>{{ loop.length }} {{ loop.nextitem is defined }}
{% endfor %}
{% if tools %}{{ tools[0] }} {{ tools | map(attribute='function.name') | join(', ') }}{% endif %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}
""",
]
"""Whole templates, in the forms of model families."""


DOUBLED = "{% set ns = namespace(a={start}) %}{% for i in range(40) %}{% set ns.a = {more} %}{% endfor %}{end}"


def doubled(start: str, more: str, end: str = "") -> str:
    return DOUBLED.replace("{start}", start).replace("{more}", more).replace("{end}", end)


ENDLESS = [
    doubled("[1]", "ns.a + ns.a"),
    doubled("'x'", "ns.a + ns.a"),
    doubled("'x'", "ns.a ~ ns.a"),
    doubled("'x'", "ns.a * 2"),
    doubled("[1]", "[ns.a, ns.a]", "{{ ns.a }}"),
    doubled("1", "{'a': ns.a, 'b': ns.a}", "{{ ns.a | tojson }}"),
    doubled("1", "(ns.a, ns.a)", "{{ ns.a == ns.a }}"),
    doubled("1", "namespace(a=[ns.a, ns.a])", "{{ ns.a }}"),
    doubled("'xx'", "ns.a.replace('x', 'xx')"),
    doubled("'xx'", "ns.a | replace('x', 'xx')"),
    doubled("'xx'", "'%s%s' | format(ns.a, ns.a)"),
    doubled("'xx'", "'{0}{0}'.format(ns.a)"),
    doubled("'xx'", "[ns.a, ns.a] | join"),
    "{% set ns = namespace(a='x') %}{% for i in range(40) %}{% set ns.a %}{{ ns.a }}{{ ns.a }}{% endset %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for a in [[[1] * 200] * 200] * 200 recursive %}{% if a is iterable %}{{ loop(a) }}{% endif %}{% endfor %}" * 20,
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}" + "text" * 1000 + "{% endfor %}",
    "{% for a in range(99999) %}" + "{{ a.real.real }}" * 1000 + "{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}"
    + "{{ n.real.real }}" * 1000
    + "{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in range(99999) | map('string') %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ a[1:] | length }}{% endfor %}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ [1] * 10 ** 12 }}",
    "{{ 10 ** 12 * 'x' }}",
    "{{ 9 ** (10 ** 9) }}",
    "{{ 'x'.center(10 ** 12) }}",
    "{{ 'x' | center(10 ** 12) }}",
    "{{ 'a\tb'.expandtabs(10 ** 12) }}",
    "{{ 'a\nb' | indent(10 ** 12) }}",
    "{{ '%999999999999d' % 1 }}",
    "{{ '%*d' % (10 ** 12, 1) }}",
    "{{ '%999999999999d' | format(1) }}",
    "{{ '{:999999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10 ** 12) }}",
    "{{ ('{:9' ~ '99999999999}').format(1) }}",
    "{{ ('x' * 999999).replace('x', 'x' * 999999) }}",
    "{{ ('x' * 999999).join([1] * 999) }}",
    "{{ ('x' * 999999).join(['1'] * 99999) }}",
    "{{ ['1'] * 99999 | join('x' * 999999) }}",
    "{{ range(99999) | join('x' * 999999) }}",
    "{{ range(99999) | map('string') | join('x' * 999999) }}",
    "{{ [1] | batch(10 ** 12, 'x') | list }}",
    "{{ [1] | slice(10 ** 12) | list }}",
    "{{ 1.5 | round(10 ** 12) }}",
    "{{ [1, [2]] | tojson(indent=10 ** 12) }}",
    "{{ (5).to_bytes(10 ** 12) }}",
    "{{ 'x'.translate({120: 'x' * 9999999}) * 99 }}",
    "{{ range(10 ** 12) | list }}",
    "{{ lipsum(n=10 ** 12) }}",
    "x" * 200_001,
]


def oracle(template: str, variables: dict[str, Any]) -> str:
    """Jinja2's own text, or its error."""

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return told(lambda: environment.from_string(template).render(**variables))


def told(work: Callable[..., str], *given: Any) -> str:
    """A call's result, or its error."""
    try:
        return work(*given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
