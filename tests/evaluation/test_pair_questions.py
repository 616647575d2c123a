"""Questions "same or not?": what they ask, what the answers give, and how far a simulated user gets with them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.nn import functional as F

from dml.data.table import UNKNOWN
from dml.evaluation.pair_questions import Answer, PairQuestions
from dml.metrics.clustering import pair_f1


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, NDArray[np.int64]]:
    pixels, labels = load_digits(return_X_y=True)
    return F.normalize(torch.from_numpy(pixels[:900]).float() - 8, dim=1), labels[:900].astype(np.int64)


def answer_all(questions: PairQuestions, labels: NDArray[np.int64], number: int) -> list[Answer]:
    """Answer so many questions as the labels do, or all that there are."""
    answers: list[Answer] = []
    while len(answers) < number and (pair := questions.choose(answers)) is not None:
        answers.append((*pair, bool(labels[pair[0]] == labels[pair[1]])))
    return answers


def test_a_hundred_answers_label_most_digits_and_random_ones_hardly_any(
    digits: tuple[torch.Tensor, NDArray[np.int64]],
) -> None:
    features, labels = digits
    questions = PairQuestions(features)
    answers = answer_all(questions, labels, 100)
    classes = questions.classify(answers)
    is_known = classes != UNKNOWN
    assert is_known.mean() > 0.8
    assert pair_f1(classes[is_known], labels[is_known]) > 0.85
    pairs = np.random.default_rng(0).choice(len(labels), (100, 2))
    at_random = questions.classify([(int(a), int(b), bool(labels[a] == labels[b])) for a, b in pairs if a != b])
    assert (at_random != UNKNOWN).mean() < is_known.mean() / 2


def test_no_question_follows_from_earlier_answers(digits: tuple[torch.Tensor, NDArray[np.int64]]) -> None:
    features, labels = digits
    answers = answer_all(PairQuestions(features[:60]), labels[:60], 1000)
    groups = np.arange(60)  # a plain union of sets as the oracle
    others: set[frozenset[int]] = set()
    for first, second, same in answers:
        pair = frozenset((int(groups[first]), int(groups[second])))
        assert len(pair) == 2
        assert pair not in {frozenset(int(groups[image]) for image in images) for images in others}
        if same:
            groups[groups == groups[first]] = groups[second]
        else:
            others.add(frozenset((first, second)))
    assert 60 < len(answers) < 1000  # all is settled in the end
    np.testing.assert_array_equal(groups[:, None] == groups, labels[:60, None] == labels[:60])


def test_answers_alone_decide_the_next_question(digits: tuple[torch.Tensor, NDArray[np.int64]]) -> None:
    features, labels = digits
    questions = PairQuestions(features[:200])
    answers = answer_all(questions, labels[:200], 90)
    for number in (89, 30, 0):  # taken back, or by a process that begins anew
        assert PairQuestions(features[:200]).choose(answers[:number]) == answers[number][:2]
        assert questions.choose(answers[:number]) == answers[number][:2]
    skipped = [*answers[:30], (*answers[30][:2], None)]
    assert questions.choose(skipped) not in (answers[30][:2], answers[30][1::-1], None)
    np.testing.assert_array_equal(questions.classify(skipped), questions.classify(answers[:30]))


@pytest.mark.parametrize("count", [2, 3, 12])
def test_few_images_and_equal_ones_are_asked_about(count: int) -> None:
    questions = PairQuestions(torch.ones(count, 4) / 2)
    assert (questions.classify([]) == UNKNOWN).all()
    answers = answer_all(questions, np.zeros(count, dtype=np.int64), 100)
    assert len(answers) == count - 1
    assert len({*questions.classify(answers).tolist()}) == 1
