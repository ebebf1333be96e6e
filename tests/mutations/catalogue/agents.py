"""Faults in agents: their calls, limits and confirmations, in the page and in Python."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["AGENTS"]

AGENTS = (
    Mutation(
        "agents.refused",
        "web/src/agent/agent_tools.ts",
        "if (allowed !== true)",
        "if (allowed === null)",
        "a call is made that the user refused",
        unit("web_api"),
    ),
    Mutation(
        "agents.read-only",
        "web/src/agent/agent_tools.ts",
        "return annotations.readOnlyHint === true;",
        "return annotations.readOnlyHint !== false;",
        "a tool without a hint needs no confirmation",
        unit("web_api"),
    ),
    Mutation(
        "agents.time",
        "web/src/agent/within.ts",
        "return await Promise.race([ended, (async () => work(own.signal))()]);",
        "return await work(own.signal);",
        "a tool that does not heed its signal hangs the run",
        unit("web_api"),
    ),
    Mutation(
        "agents.bytes",
        "web/src/agent/agent_tools.ts",
        "if (bytes.length <= most && text.length <= most) return text;",
        "if (text.length <= most) return text;",
        "a result has characters up to the limit of bytes",
        unit("web_api"),
    ),
    Mutation(
        "agents.steps",
        "web/src/agent/agent_run.ts",
        "step === this.given.maxSteps",
        "step > this.given.maxSteps",
        "a run has one answer more than its limit",
        unit("web_api"),
    ),
    Mutation(
        "agents.held",
        "web/src/agent/agent_run.ts",
        "{ tools: described, strictTools: true }",
        "{ tools: described }",
        "no grammar holds an agent's calls",
        unit("web_api"),
    ),
    Mutation(
        "agents.names",
        "web/src/agent/agent_tools.ts",
        "if (other)\n",
        "if (other?.source === tool.source)\n",
        "of two tools of one name the last one is called",
        unit("web_api"),
    ),
    Mutation(
        "agents.flood",
        "web/src/agent/mcp.ts",
        "if (count <= MOST_BYTES) return",
        "if (count > 0) return",
        "a server's answer has any size",
        browser("agents"),
    ),
    Mutation(
        "agents.optional",
        "py_src/capstan/text/call_grammar.py",
        "start = optional_call(form, calls, in_json, special, begun=begun)",
        "start = required_call(form, [*calls, *in_json], special, begun=begun)",
        "a model that may call has to",
        unit("calls"),
    ),
    Mutation(
        "agents.unheld",
        "py_src/capstan/text/answer_reader.py",
        "if mark == form.calls.before[0]}",
        "if mark}",
        "a call after a mark that no grammar watches is a call",
        unit("calls"),
    ),
    Mutation(
        "agents.described",
        "py_src/capstan/text/literal_text.py",
        "if in_tools and self._all else tools, mark",
        "if in_tools and not self._all else tools, mark",
        "a tool's description ends a turn",
        unit("literal_text"),
    ),
    Mutation(
        "agents.python-refused",
        "py_src/capstan/agents.py",
        "is not True:",
        "is None:",
        "a call is made that the app refused",
        unit("agents"),
    ),
)
