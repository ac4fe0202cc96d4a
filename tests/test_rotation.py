"""The parts of a matrix are all of it, and each part has each value."""

import itertools

import pytest

from tests.rotation import PARTS, chosen

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
