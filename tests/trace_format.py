"""Chrome's trace format, JSON Object Format, as Perfetto reads it: checks a trace and gives its slices by track."""

from __future__ import annotations

from typing import Any

__all__ = ["Slices", "slices_by_track"]

Slices = dict[str, list[dict[str, Any]]]


def slices_by_track(trace: dict[str, Any]) -> Slices:
    """The complete events of each named track in order; on a track they hold one another or do not touch."""
    assert trace.keys() == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names: dict[int, str] = {}
    found: Slices = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str), event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["tid"], int), event
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index"), event
            if event["name"] == "thread_name":
                names[event["tid"]] = event["args"]["name"]
            continue
        assert event["ph"] == "X", event
        assert isinstance(event["ts"], int), event
        assert isinstance(event["dur"], int), event
        assert event["dur"] >= 0, event
        found.setdefault(names[event["tid"]], []).append(event)
    assert len(set(names.values())) == len(names), "two tracks of one name"
    for track, slices in found.items():
        slices.sort(key=lambda each: (each["ts"], -each["dur"]))
        ends: list[int] = []
        for each in slices:
            while ends and ends[-1] <= each["ts"]:
                ends.pop()
            assert not ends or each["ts"] + each["dur"] <= ends[-1], (track, each)
            ends.append(each["ts"] + each["dur"])
    return found
