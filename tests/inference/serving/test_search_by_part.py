"""The API of an index, asked for what is similar to a part of an image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from served_index import HOSTS, LIMITS

from dml.inference.image_index import Index
from dml.inference.serving.image_search import ImageSearch
from dml.inference.serving.web_api import create_app

pytest_plugins = ("served_index",)
BOX = [0.25, 0.25, 0.75, 0.75]


@pytest.fixture(scope="module")
def client(index: Index) -> Iterator[TestClient]:
    with TestClient(create_app(ImageSearch(index, LIMITS), HOSTS), base_url="http://localhost") as client:
        yield client


def test_a_part_finds_what_its_pixels_find(client: TestClient, index: Index) -> None:
    path = index.items.paths[7]
    scores, positions = index.search_positions(f"{path}#6,5,18,15", 5)  # of 24 x 20 pixels
    parameters: dict[str, Any] = {"k": 5, "box": BOX}
    for found in (
        client.post("/api/search", params=parameters, content=Path(path).read_bytes()).json()["neighbors"],
        client.get("/api/items/7/neighbors", params=parameters).json()["neighbors"],
    ):
        assert [neighbor["item"] for neighbor in found] == positions[0].tolist()
        np.testing.assert_array_equal([neighbor["score"] for neighbor in found], scores[0].tolist())


@pytest.mark.parametrize(
    ("box", "fault"),
    [
        ([0.1, 0.2, 0.3], "box: List should have at least 4 items"),
        ([0, 0, 1, 1.5], "box.3: Input should be less than or equal to 1"),
        ([0, 0, "nan", 1], "box.2: Input should be less"),
        ([0.5, 0, 0.4, 1], "item 7: -2 x 20 pixels; no side may be"),
        ([0, 0.5, 1, 0.51], "item 7: 24 x 0 pixels"),
    ],
)
def test_a_box_that_is_none_is_refused(client: TestClient, box: list[Any], fault: str) -> None:
    response = client.get("/api/items/7/neighbors", params={"box": box})
    assert response.status_code == 422
    assert fault in response.json()["error"]
