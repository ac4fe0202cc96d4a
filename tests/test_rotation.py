"""The parts of a matrix are all of it, and each part has each value."""

import itertools
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.rotation import PARTS, chosen, pytest_collection_modifyitems

SHAPES = [(1,), (2,), (3,), (5,), (25,), (2, 2), (3, 3), (4, 5), (2, 3, 2), (1, 4)]


@pytest.mark.parametrize("matrix", ["kills", "targets", "seeds", "tests/a.py::test_b"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_parts_together_are_the_matrix(shape: tuple[int, ...], matrix: str) -> None:
    levels = {cell: sum(cell) for cell in itertools.product(*map(range, shape))}
    parts = [chosen(part + 1, matrix, levels) for part in range(PARTS)]
    assert set().union(*parts) == levels.keys()
    assert all(parts), "each matrix is in each part"
    assert max(map(len, parts)) <= -(-len(levels) // min(PARTS, sum(shape) - len(shape) + 1)) + 1
    for place in range(len(shape)):
        if max(shape[:place] + shape[place + 1 :], default=1) >= PARTS:
            for part in parts:
                assert {cell[place] for cell in part} == {*range(shape[place])}


def test_matrices_begin_in_different_parts() -> None:
    levels = {"mariadb": 0, "postgres": 1, "sqlite": 2}
    first = [chosen(1, f"test_{number}", levels).pop() for number in range(20)]
    assert {*first} == levels.keys()


def test_functions_that_name_a_matrix_are_its_cells() -> None:
    """Each is played in one part; other functions in all."""

    def function(name: str, *marks: pytest.MarkDecorator) -> Any:
        given = {mark.name: mark.mark for mark in (pytest.mark.long, *marks)}
        return mock.Mock(nodeid=name, get_closest_marker=given.get)

    cells = [function(f"cell {number}", pytest.mark.matrix(of="kills")) for number in range(7)]
    alone = function("alone")
    parts = []
    for part in range(PARTS):
        items = [*cells, alone]
        config = SimpleNamespace(
            option=SimpleNamespace(part=f"{part + 1}/{PARTS}"),
            hook=SimpleNamespace(pytest_deselected=lambda items: None),
        )
        pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
        assert items.pop() is alone
        parts.append([item.nodeid for item in items])
    assert sorted(itertools.chain(*parts)) == [item.nodeid for item in cells]
    assert sorted(map(len, parts)) == [2, 2, 3]
