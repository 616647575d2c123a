import logging
import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.retrieval.search import nearest_neighbors
from dml.runtime.errors import InputError
from dml.samplers.local_neighborhood import LocalNeighborhoodSampler, hard_shares

Groups = list[tuple[int, list[int]]]


def random_table(count: int, k: int, seed: int = 0) -> np.ndarray:
    """Each row's neighbors: any k others."""
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(np.delete(np.arange(count), row))[:k] for row in range(count)])


def clustered(count: int, classes: int, k: int, seed: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and the table of embeddings that lie around their classes' centers."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    embeddings = rng.standard_normal((classes, 8))[labels] + noise * rng.standard_normal((count, 8))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return labels, nearest_neighbors(embeddings, k)[1].numpy()


@st.composite
def setups(draw):
    """labels, table, batch size, seed and epoch, small and often unfriendly."""
    count = draw(st.integers(3, 40))
    labels = np.array(draw(st.lists(st.integers(0, draw(st.integers(0, 12))), min_size=count, max_size=count)))
    k = draw(st.integers(1, count - 1))
    table = random_table(count, k, draw(st.integers(0, 99)))
    if draw(st.booleans()):  # the nearest ones are of the row's class, as far as there are any
        others = [np.delete(np.arange(count), row) for row in range(count)]
        table = np.array([row[np.argsort(labels[row] != labels[i], kind="stable")][:k] for i, row in enumerate(others)])
    batch_size = draw(st.integers(3, count))
    return labels, table, batch_size, draw(st.integers(0, 2**70)), draw(st.integers(0, 1000))


def is_mixed(center: int, members: list[int], labels: np.ndarray) -> bool:
    return {labels[row] == labels[center] for row in members} == {True, False}


def planned_sizes(batch_size: int, whole: int) -> list[int]:
    """Whole groups and a rest, to which those before it give up rows until it has three, if that can be."""
    sizes = [whole] * (batch_size // whole)
    if rest := batch_size % whole:
        kept = sizes.copy()
        sizes.append(rest)
        for index in reversed(range(len(sizes) - 1)):
            while sizes[-1] < 3 and sizes[index] > 3:
                sizes[index] -= 1
                sizes[-1] += 1
        if sizes[-1] < 3:
            return kept
    return sizes


def by_the_five_steps(
    labels: np.ndarray, table: np.ndarray, batch_size: int, seed: int, epoch: int, number: int
) -> tuple[Groups, bool]:
    """The groups that section 3.4 makes of the centers in their order, and whether these groups fill the batch."""
    k = table.shape[1]
    shuffled = np.random.default_rng((seed, epoch)).permutation(len(labels)).tolist()
    centers = [row for row in shuffled if is_mixed(row, table[row].tolist(), labels)]  # step 3
    first = number * math.ceil(batch_size / (k + 1))
    sizes = planned_sizes(batch_size, k + 1)
    batch: set[int] = set()
    groups: Groups = []
    for place in range(len(centers)):
        if len(groups) == len(sizes):
            break
        center = centers[(first + place) % len(centers)]  # step 2
        members = table[center].tolist()
        if batch & {center, *members}:  # step 4
            continue
        while len(members) + 1 > sizes[len(groups)]:  # the last group is cut: the farthest that can be spared goes
            spare = [row for row in members if is_mixed(center, [m for m in members if m != row], labels)]
            members.remove(spare[-1])
        groups.append((center, members))  # step 5
        batch |= {center, *members}
    return groups, len(batch) == batch_size


@given(setups(), st.integers(0, 5))
def test_batches_follow_the_five_steps_as_far_as_they_go(setup, number):
    labels, table, batch_size, seed, epoch = setup
    sampler = LocalNeighborhoodSampler(labels, table, batch_size, seed=seed)
    sampler.set_epoch(epoch)
    expected, filled = by_the_five_steps(labels, table, batch_size, seed, epoch, number)
    groups = sampler.groups(number)
    if table.shape[1] >= 2:
        assert groups[: len(expected)] == expected
    assert not filled or len(groups) == len(expected)


@given(setups())
def test_batches_are_exact_and_without_duplicates_and_groups_are_mixed_where_possible(setup):
    labels, table, batch_size, seed, epoch = setup
    sampler = LocalNeighborhoodSampler(labels, table, batch_size, seed=seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler) == math.ceil(len(labels) / batch_size)
    for number, batch in enumerate(batches):
        groups = sampler.groups(number)
        assert batch == [row for center, members in groups for row in (center, *members)]
        assert len(set(batch)) == len(batch) == batch_size
        assert all(type(row) is int for row in batch)
        before: set[int] = set()
        for index, (center, members) in enumerate(groups):
            if not is_mixed(center, members, labels):  # rows at random: nothing else could be had
                assert index == len(groups) - 1
                left = Counter(labels[[row for row in range(len(labels)) if row not in before]].tolist())
                assert len(members) + 1 < 3 or len(left) == 1 or max(left.values()) == 1
                continue
            assert len(members) <= max(table.shape[1], 2)
            near = [row for row in members if row in table[center]]
            assert near == [row for row in table[center].tolist() if row in near]
            drawn = [row for row in members if row not in near]
            assert members == near + drawn
            for row in drawn:  # only what the neighbors that were left do not have
                alike = labels[row] == labels[center]
                assert not any((labels[m] == labels[center]) == alike for m in table[center] if m not in before)
            before |= {center, *members}


def test_a_new_table_counts_from_the_next_iteration_on():
    labels, table = clustered(200, 20, 8)
    _, later = clustered(200, 20, 8, seed=1)
    sampler = LocalNeighborhoodSampler(labels, table.copy(), 32)
    sampler.set_epoch(0)
    before = list(sampler)
    under_way = iter(sampler)
    begun = [next(under_way)]
    sampler.set_neighbors(given_away := later.copy())
    sampler.set_epoch(1)
    given_away[:] = 0
    assert begun + list(under_way) == before
    sampler.set_epoch(0)
    assert list(sampler) == list(LocalNeighborhoodSampler(labels, later, 32)) != before


def test_every_row_that_can_be_a_center_is_one_about_equally_often():
    labels, table = clustered(60, 12, 5)
    centers = Counter()
    sampler = LocalNeighborhoodSampler(labels, table, 6)  # one group a batch
    for number in range(300):
        sampler.set_epoch(number)
        centers.update(batch[0] for batch in sampler)
    mixed = {row for row in range(60) if is_mixed(row, table[row].tolist(), labels)}
    assert set(centers) == mixed
    assert max(centers.values()) < 2 * min(centers.values())


@pytest.mark.parametrize(
    ("batch_size", "k", "expected"),
    [
        (128, 16, [17] * 7 + [9]),
        (51, 16, [17] * 3),
        (52, 16, [17, 17, 15, 3]),
        (53, 16, [17, 17, 16, 3]),
        (54, 16, [17, 17, 17, 3]),
        (10, 16, [10]),
        (9, 3, [3, 3, 3]),
    ],
)
def test_group_sizes(batch_size, k, expected):
    count = 60 * (k + 1)
    labels = np.arange(count) // 2
    table = np.array([[row ^ 1, *((row // (k + 1) * (k + 1) + np.arange(k + 1)).tolist())] for row in range(count)])
    table = np.array([[r for r in dict.fromkeys(row.tolist()) if r != i][:k] for i, row in enumerate(table)])
    sampler = LocalNeighborhoodSampler(labels, table, batch_size)
    assert [1 + len(members) for _, members in sampler.groups(0)] == expected == planned_sizes(batch_size, k + 1)


def warned(caplog) -> dict[str, int]:
    """The counts of the one warning that was logged; none, and they are zero."""
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    if not messages:
        return {}
    [message] = messages
    numbers = list(map(int, re.findall(r"\d+", message)))
    return dict(zip(("epoch", "groups", "thinned", "completed", "random"), numbers, strict=True))


def test_a_friendly_table_gives_no_warning(caplog):
    labels, table = clustered(1000, 200, 8)
    list(LocalNeighborhoodSampler(labels, table, 32))
    assert warned(caplog) == {}


def test_neighbors_that_the_batch_has_are_left_out_if_every_neighborhood_has_them(caplog):
    labels = np.arange(120) % 40
    near = [[r % 120 for r in (row + 40, row + 80, row + 1, row + 2)] for row in range(120)]
    table = np.array([[*row[:3], 0 if index and 0 not in row else row[3]] for index, row in enumerate(near)])
    sampler = LocalNeighborhoodSampler(labels, table, 20)  # row 0 is in every group
    sampler.set_epoch(7)
    for number in range(len(sampler)):
        whole, *rest = sampler.groups(number)
        assert whole.members == table[whole.center].tolist()
        for center, members in rest:
            assert is_mixed(center, members, labels)
            assert set(members) < set(table[center].tolist())
    list(sampler)
    counts = warned(caplog)
    assert counts["epoch"] == 7
    assert counts["thinned"] == counts["groups"] - len(sampler)
    assert counts["completed"] == counts["random"] == 0


@pytest.mark.parametrize("similar", [True, False])
def test_what_no_neighborhood_has_is_drawn_from_the_whole_training_split(similar, caplog):
    labels = np.arange(120) % 10
    others = [[r for r in range(120) if r != row and (labels[r] == labels[row]) == similar] for row in range(120)]
    table = np.array([np.random.default_rng(row).permutation(rows)[:6] for row, rows in enumerate(others)])
    sampler = LocalNeighborhoodSampler(labels, table, 40)
    drawn, rest = set(), 0
    for number in range(len(sampler)):
        for center, members in sampler.groups(number):
            if len(members) < 2:  # no room for a group
                rest += 1 + len(members)
                continue
            assert is_mixed(center, members, labels)
            assert sum((labels[row] == labels[center]) == similar for row in members) == len(members) - 1
            drawn.add(members[-1])
    assert len(drawn) > 10
    assert len(list(sampler)) == 3
    counts = warned(caplog)
    assert counts["completed"] == counts["groups"] >= 3 * 6
    assert (counts["thinned"], counts["random"]) == (0, rest)
    assert rest <= 3 * 2


def test_one_neighbor_is_too_few_and_the_other_kind_is_drawn(caplog):
    labels, table = clustered(90, 30, 1)
    sampler = LocalNeighborhoodSampler(labels, table, 30)
    for number in range(3):
        groups = sampler.groups(number)
        assert [len(members) for _, members in groups] == [2] * 10
        assert all(is_mixed(center, members, labels) for center, members in groups)
    list(sampler)
    assert warned(caplog) == {"epoch": 0, "groups": 30, "thinned": 0, "completed": 30, "random": 0}


@pytest.mark.parametrize("labels", [np.zeros(30, int), np.arange(30)], ids=["one class", "classes of one image"])
def test_without_any_group_to_be_had_rows_are_drawn_at_random(labels, caplog):
    sampler = LocalNeighborhoodSampler(labels, random_table(30, 4), 10)
    batches = list(sampler)
    assert warned(caplog) == {"epoch": 0, "groups": 0, "thinned": 0, "completed": 0, "random": 30}
    assert len({tuple(batch) for batch in batches}) == 3


def test_one_warning_an_epoch_also_if_the_run_ends_within_it(caplog):
    labels = np.arange(30)
    sampler = LocalNeighborhoodSampler(labels, random_table(30, 4), 10)
    batches = iter(sampler)
    next(batches)
    assert warned(caplog) == {}
    batches.close()
    assert warned(caplog)["random"] == 10


def test_only_the_first_columns_of_a_wider_table_count():
    labels, table = clustered(200, 20, 12)
    expected = list(LocalNeighborhoodSampler(labels, table[:, :5], 32))
    assert list(LocalNeighborhoodSampler(labels, table, 32, num_neighbors=5)) == expected
    assert list(LocalNeighborhoodSampler(labels, table[:, :5], 32, num_neighbors=16)) == expected


def shares_by_counting(labels: np.ndarray, table: np.ndarray, batch: list[int]) -> tuple[float, float, float]:
    near: dict[bool, list[bool]] = {True: [], False: []}
    anchors = 0
    for i, row in enumerate(batch):
        others = batch[:i] + batch[i + 1 :]
        for other in others:
            near[bool(labels[row] == labels[other])].append(other in table[row].tolist())
        anchors += any(labels[row] == labels[other] for other in others)
    shares = [sum(near[kind]) / len(near[kind]) if near[kind] else math.nan for kind in (False, True)]
    return shares[0], shares[1], anchors / len(batch)


@given(setups(), st.data())
def test_hard_shares_count_pairs(setup, data):
    labels, table, _, _, _ = setup
    batch = data.draw(st.lists(st.integers(0, len(labels) - 1), min_size=1, max_size=12))
    levels = np.stack([labels, labels // 2], axis=1)
    assert hard_shares(levels, table, batch) == pytest.approx(shares_by_counting(labels, table, batch), nan_ok=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 2}, "sampler.batch_size=2: must be a whole number, 3 or more"),
        ({"batch_size": 7}, "sampler.batch_size=7: the training split has only 6 images"),
        ({"num_neighbors": 0}, "sampler.num_neighbors=0: must be a whole number, 1 or more"),
        *(
            ({"neighbors": table}, "neighbors of shape (")
            for table in [
                *(np.ones((5, 2), int), np.ones(6, int), np.ones((6, 0), int), np.ones((6, 1))),
                *([[1], [2], [3], [4], [5], [6]], [[1], [2], [3], [4], [5], [-1]]),  # rows that aren't there
                [[1], [2], [3], [4], [4], [0]],  # a row among its own neighbors
                [[1, 2], [2, 0], [3, 3], [4, 1], [5, 1], [0, 1]],  # a neighbor twice
            ]
        ),
    ],
)
def test_wrong_settings_are_named_in_one_line(wrong, message):
    arguments = {"labels": [0, 0, 1, 1, 2, 2], "neighbors": None, "batch_size": 3} | wrong
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        LocalNeighborhoodSampler(**arguments)


def test_without_a_table_there_are_no_batches():
    sampler = LocalNeighborhoodSampler([0, 0, 1, 1, 2, 2], batch_size=3)
    assert len(sampler) == 2
    with pytest.raises(InputError, match="need a table of neighbors, and none was set yet"):
        iter(sampler)
