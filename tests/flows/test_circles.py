"""No module needs itself by way of others, not even for its types: each can be read, and tried, with what lies below it alone."""

from __future__ import annotations

from collections.abc import Mapping

import grimp
import pytest


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of more than one module that reach each other (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        waiting.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in waiting:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            at = waiting.index(module)
            together = waiting[at:]
            del waiting[at:]
            if len(together) > 1:
                found.append(sorted(together))

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return found


def test_a_circle_by_way_of_a_third_is_found_and_a_fork_is_none() -> None:
    assert circles({"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"c"}, "e": {"a"}}) == [["a", "b", "c", "d"]]
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []


@pytest.mark.parametrize("package", ["include", "local"])
def test_no_room_holds_a_circle_of_imports(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    assert circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []
