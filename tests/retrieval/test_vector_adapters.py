"""Adapters between the vectors of two models: worked values, the order of their steps, and what they refuse."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dml.retrieval.adapters import (
    FITS,
    Adapter,
    fit_affine,
    fit_procrustes,
    solve_procrustes,
)
from dml.runtime.errors import InputError

ROOT3 = 3**0.5 / 2
PLANE = np.array([[1.0, 0], [0, 1], [1, 1]])
TURNED = np.array([[ROOT3, 0.5], [-0.5, ROOT3], [ROOT3 - 0.5, ROOT3 + 0.5]])
close = pytest.approx


def squared_residual(source: Any, matrix: Any, target: Any) -> float:
    return float(((source @ matrix - target) ** 2).sum())


@pytest.mark.parametrize(
    ("source", "target", "matrix", "singular_values", "residual", "transposed_residual"),
    [
        (PLANE, TURNED, [[ROOT3, 0.5], [-0.5, ROOT3]], [3, 1], 0, 4.0),
        (
            np.eye(2),
            np.array([[1.0, 1], [0, 1]]),
            np.array([[2, 1], [-1, 2]]) / 5**0.5,
            [(1 + 5**0.5) / 2, (5**0.5 - 1) / 2],
            5 - 2 * 5**0.5,
            2.3167184270,
        ),
        (
            np.vstack([np.eye(3), np.ones(3)]),
            np.vstack([np.eye(3), np.ones(3)])[:, [1, 0, 2]],
            np.eye(3)[[1, 0, 2]],
            [4, 1, 1],
            0,
            None,
        ),
        (PLANE, PLANE @ np.array([[1, 2, 2], [2, 1, -2]]) / 3, np.array([[1, 2, 2], [2, 1, -2]]) / 3, [3, 1], 0, None),
        (
            np.diag([1.0, 1, 3]),
            np.array([[1.0, 0], [0, 1], [1, 0]]),
            np.array([[0.1**0.5, 0], [0, 1], [0.9**0.5, 0]]),
            [10**0.5, 1],
            3.8754446797,
            None,
        ),
    ],
    ids=["exact", "inexact", "reflection", "up", "down"],
)
def test_procrustes_has_the_worked_values(
    source: Any, target: Any, matrix: Any, singular_values: Any, residual: float, transposed_residual: float | None
) -> None:
    found, values = solve_procrustes(source, target)
    np.testing.assert_allclose(found, matrix, atol=1e-9)
    np.testing.assert_allclose(values, singular_values, atol=1e-9)
    assert squared_residual(source, found, target) == close(residual, abs=1e-9)
    if source.shape[1] <= target.shape[1]:
        expected = (source**2).sum() + (target**2).sum() - 2 * values.sum()
        assert squared_residual(source, found, target) == close(expected, abs=1e-9)
        np.testing.assert_allclose(found @ found.T, np.eye(len(found)), atol=1e-12)
    if transposed_residual is not None:
        assert squared_residual(source, found.T, target) == close(transposed_residual, abs=1e-9)


def test_a_reflection_may_not_be_forced_to_a_rotation() -> None:
    source = np.vstack([np.eye(3), np.ones(3)])
    left, _, right = np.linalg.svd(source.T @ source[:, [1, 0, 2]])
    forced = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    assert np.linalg.det(solve_procrustes(source, source[:, [1, 0, 2]])[0]) == close(-1)
    assert squared_residual(source, forced, source[:, [1, 0, 2]]) == close(4.0, abs=1e-9)


def test_centering_has_the_worked_values() -> None:
    source = np.array([[7.0, 0], [5, 1], [3, 0], [5, -1]])
    target = np.array([[5.0, 2], [4, 0], [5, -2], [6, 0]])
    centered, _ = solve_procrustes(source - source.mean(axis=0), target - target.mean(axis=0))
    np.testing.assert_allclose(centered, [[0, 1], [-1, 0]], atol=1e-9)
    mapped = (source - source.mean(axis=0)) @ centered + target.mean(axis=0)
    np.testing.assert_allclose(mapped, target, atol=1e-9)
    matrix, _ = solve_procrustes(source, target)
    assert squared_residual(source, matrix, target) == close(19.0024875776, abs=1e-9)


def test_a_map_down_matches_after_the_rows_are_normalized() -> None:
    adapter = fit_procrustes(np.diag([1.0, 1, 3]), np.array([[1.0, 0], [0, 1], [1, 0]]), center=False)
    np.testing.assert_allclose(adapter(np.diag([1.0, 1, 3])), [[1, 0], [0, 1], [1, 0]], atol=1e-6)


def test_the_affine_map_is_the_ridge_regression_of_the_centered_unit_vectors() -> None:
    drawn = np.random.default_rng(6)
    source, target = drawn.normal(size=(40, 3)) + 1, drawn.normal(size=(40, 2))
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (source, target))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    for ridge in (0.5, 20.0):
        expected = np.linalg.inv(x.T @ x + ridge * np.eye(3)) @ x.T @ y
        np.testing.assert_allclose(fit_affine(source, target, ridge=ridge).matrix, expected, atol=1e-9)


@pytest.mark.parametrize("center", [True, False])
def test_an_orthogonal_map_of_the_same_space_is_found(center: bool) -> None:
    drawn = np.random.default_rng(1)
    source = drawn.normal(size=(60, 6)) + 1
    rotation = np.linalg.qr(drawn.normal(size=(6, 6)))[0]
    adapter = fit_procrustes(source, 3 * source @ rotation, center=center)
    np.testing.assert_allclose(adapter.matrix, rotation, atol=1e-9)
    np.testing.assert_allclose(fit_procrustes(source, source, center=center).matrix, np.eye(6), atol=1e-9)
    unit = source / np.linalg.norm(source, axis=1, keepdims=True)
    np.testing.assert_allclose((unit @ adapter.matrix) @ (unit @ adapter.matrix).T, unit @ unit.T, atol=1e-12)
    np.testing.assert_allclose(adapter(source), unit @ rotation, atol=1e-6)


def test_a_ridge_is_chosen_and_stretches_what_a_rotation_does_not() -> None:
    drawn = np.random.default_rng(2)
    source = drawn.normal(size=(1500, 6))
    unit = source / np.linalg.norm(source, axis=1, keepdims=True)
    target = np.hstack([unit[:, :3], 2 * unit[:, 3:] ** 2])
    pairs = source[:1200], target[:1200]
    expected = target[1200:] / np.linalg.norm(target[1200:], axis=1, keepdims=True)
    cosines = {kind: float((fit(*pairs)(source[1200:]) * expected).sum(axis=1).mean()) for kind, fit in FITS.items()}
    assert cosines["procrustes"] < cosines["affine"]
    ridges = [float((fit_affine(*pairs, ridge=r)(source[1200:]) * expected).sum(axis=1).mean()) for r in (0.1, 1e4)]
    assert cosines["affine"] >= ridges[0] - 1e-3 > ridges[1]


@pytest.mark.parametrize("kind", FITS)
def test_an_adapter_repeats_and_is_the_same_after_it_is_saved(kind: str, tmp_path: Path) -> None:
    drawn = np.random.default_rng(3)
    source, target = drawn.normal(size=(90, 7)), torch.from_numpy(drawn.normal(size=(90, 5)))
    fit: Callable[..., Adapter] = FITS[kind]
    first, again = fit(source, target), fit(source, target)
    vectors = first(source)
    assert vectors.dtype == np.float32
    assert vectors.shape == (90, 5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(again(source), vectors)
    first.save(tmp_path / "adapter.npz")
    opened = Adapter.read(tmp_path / "adapter.npz")
    assert opened.kind == kind
    np.testing.assert_array_equal(opened(source), vectors)


def test_a_damaged_adapter_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "adapter.npz"
    adapter = fit_procrustes(np.eye(4), np.eye(4))
    for matrix in (np.eye(4, 3), np.full((4, 4), np.nan)):
        Adapter("procrustes", matrix, adapter.bias).save(path)
        with pytest.raises(InputError, match="no adapter that can be read"):
            Adapter.read(path)
    np.savez(path, kind=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="no adapter that can be read"):
        Adapter.read(path)
    adapter.save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 13):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with suppress(InputError):
            np.testing.assert_array_equal(Adapter.read(path).matrix, adapter.matrix)


def test_few_pairs_are_told(caplog: pytest.LogCaptureFixture) -> None:
    drawn = np.random.default_rng(4)
    for pairs, words in ((9, 0), (5, 1)):
        fit_procrustes(drawn.normal(size=(pairs, 8)), drawn.normal(size=(pairs, 8)))
        assert len(caplog.messages) == words
    assert "4 independent pairs for 8 dimensions" in caplog.messages[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: fit_procrustes(np.eye(3), np.eye(4)),
        lambda: fit_procrustes(np.eye(3)[:1], np.eye(3)[:1]),
        lambda: fit_procrustes(np.ones((3, 2)), np.eye(3)),
        lambda: fit_procrustes(np.full((3, 2), np.nan), np.eye(3)),
    ],
)
def test_what_cannot_be_used_is_one_line(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        call()
