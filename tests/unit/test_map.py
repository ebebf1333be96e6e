"""The map of the code in docs/ is of this code; rooms stand above what they import."""

from __future__ import annotations

from buildtools import map as code_map


def test_the_committed_map_is_of_this_code() -> None:
    assert code_map.PICTURE.read_text(encoding="utf-8") == code_map.drawn(), "python3 build.py docs --pages"


def test_rooms_stand_above_what_they_import_and_circles_side_by_side() -> None:
    graph = {
        "page": {"loop", "device"},
        "loop": {"device"},
        "device": {"kernels"},
        "kernels": {"device"},
        "errors": set(),
    }
    level = code_map.levels(graph)
    assert level["page"] > level["loop"] > level["device"] == level["kernels"]
    assert code_map.rows(graph)[0] == ["page"]
    assert sorted(room for row in code_map.rows(graph) for room in row) == sorted(graph)


def test_a_line_is_drawn_where_no_other_room_passes_an_import_on() -> None:
    graph = {"page": {"loop", "device"}, "loop": {"device"}, "device": set()}
    assert code_map.direct(graph) == [("loop", "device"), ("page", "loop")]


def test_a_package_is_read_with_its_relative_imports_and_its_rooms() -> None:
    graph, about, beyond = code_map.python_rooms("capstan")
    assert "memory" in graph["device"]
    assert about["errors"]
    assert not beyond
    assert not any(room in names for room, names in graph.items())
