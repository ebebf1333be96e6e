"""Faults in what reads models, requests, texts and grammars."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["INPUTS"]

INPUTS = (
    Mutation(
        "config.percent_d",
        "py_src/capstan/config.py",
        'if value.count("%d") != 1:',
        'if "%d" not in value:',
        "a name pattern with two places for the layer is taken",
        unit("config"),
    ),
    Mutation(
        "config.data_folder",
        "py_src/capstan/config.py",
        'return self.filename[: self.filename.rfind("/") + 1]',
        'return self.filename[: self.filename.rfind("/")]',
        "the folder of data files lacks its slash",
        unit("config", "model"),
    ),
    Mutation(
        "config.capture_first",
        "py_src/capstan/config.py",
        "            found = GraphCapture(switched(options, CAPTURE, False), options.where(CAPTURE))",
        "            found = found or GraphCapture(switched(options, CAPTURE, False), options.where(CAPTURE))",
        "the first enableGraphCapture counts, not the last",
        unit("config"),
    ),
    Mutation(
        "file_names.encoded_up",
        "py_src/capstan/file_names.py",
        """        if found or decoded == name:
            return found
""",
        """        return found
""",
        "a percent-encoded path may lead out of the model's folder",
        unit("file_names"),
    ),
    Mutation(
        "retrying.one_more",
        "py_src/capstan/retrying.py",
        "if tried >= TRIES or",
        "if tried > TRIES or",
        "a request is made once more than told",
        unit("retrying"),
    ),
    Mutation(
        "tokenizer.padded_before",
        "py_src/capstan/tokenizer.py",
        "return [row + [pad_token_id] * (longest - len(row)) for row in rows]",
        "return [[pad_token_id] * (longest - len(row)) + row for row in rows]",
        "padding of a batch is before the shorter prompts",
        unit("tokenizer"),
    ),
    Mutation(
        "stream.sent_twice",
        "py_src/capstan/stream.py",
        "self._shown, self._sent = len(self._window), len(text)",
        "self._shown, self._sent = len(self._window), 0",
        "the context of a delta is given out again",
        unit("stream", "tokenizer"),
    ),
    Mutation(
        "stream.stop_begun",
        "py_src/capstan/stream.py",
        "for size in range(min(len(text), len(stop) - 1), 0, -1):",
        "for size in range(1, min(len(text), len(stop) - 1) + 1):",
        "the shortest beginning of a stop string is held back, not the longest",
        unit("stream"),
    ),
    Mutation(
        "automaton.ended_rule",
        "py_src/capstan/guidance/automaton.py",
        "if len(stack) == 1 or not self.accepting[stack[-1]]:",
        "if len(stack) == 1:",
        "a rule ends where it may not",
        unit("guidance_automaton"),
    ),
    Mutation(
        "automaton.following",
        "py_src/capstan/guidance/automaton.py",
        "row[symbol] = (pushed if ends else (following, *pushed), first)",
        "row[symbol] = (pushed, first)",
        "a rule forgets where its caller goes on",
        unit("guidance_automaton"),
    ),
    Mutation(
        "constraint.rolled_back",
        "py_src/capstan/guidance/constraint.py",
        "matcher.roll_back(len(found))",
        "matcher.roll_back(len(found) - 1)",
        "tokens that were tried for a forced text stay in the matcher",
        unit("constrained", "guidance_matching"),
    ),
    Mutation(
        "vocabulary.special",
        "py_src/capstan/guidance/vocabulary.py",
        'plain = not added.get("special") or added["id"] in stop',
        "plain = True",
        "a grammar may force the text of a special token",
        unit("guidance_texts", "guidance_matching"),
    ),
    Mutation(
        "json_numbers.exclusive",
        "py_src/capstan/guidance/json_numbers.py",
        "high -= found.below and high == found.high",
        "high -= found.below",
        "below 5.5 the integer 5 is excluded, too",
        unit("guidance_matching", "guidance_texts"),
    ),
)
