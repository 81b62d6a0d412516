import random
from collections import Counter
from itertools import combinations

import pytest

from trl_spiral.tasks import get_task
from trl_spiral.tasks.connections import (
    HERRINGS,
    Connections,
    count_herrings,
    load_categories,
    read_groups,
    small_categories,
)


CATEGORIES = load_categories()
HOLDING: dict[str, list[frozenset[str]]] = {}  # the categories of a word
for known in map(frozenset, CATEGORIES.values()):
    for word in known:
        HOLDING.setdefault(word, []).append(known)


def solutions(words, size=4):
    """
    Return every partition of words into groups that are each in one category.

    Independent of the generator: it uses sets instead of bit masks, and searches the groups of one word at a time.
    """
    if not words:
        return {frozenset()}
    first, rest = words[0], words[1:]
    groups = {
        frozenset((first, *others))
        for known in HOLDING[first]
        for others in combinations([word for word in rest if word in known], size - 1)
    }
    return {
        frozenset([group, *more])
        for group in groups
        for more in solutions([word for word in rest if word not in group], size)
    }


def written(groups):
    return "; ".join(", ".join(group) for group in groups)


class TestCategories:
    def test_are_many_and_large(self):
        assert len(CATEGORIES) >= 150
        assert all(len(words) >= 8 for words in CATEGORIES.values())

    def test_contain_each_word_once(self):
        for words in CATEGORIES.values():
            assert len(set(words)) == len(words)
            assert all(word.isascii() and word.isalpha() and word.islower() for word in words)

    def test_share_many_words(self):
        times = Counter(word for words in CATEGORIES.values() for word in words)

        assert sum(number > 1 for number in times.values()) >= 300

    def test_belong_to_one_split_each(self):
        task = Connections()
        train, validation = task.split("train"), task.split("validation")

        assert set(train).isdisjoint(validation)
        assert {**train, **validation} == CATEGORIES
        assert len(CATEGORIES) // 6 < len(validation) <= len(CATEGORIES) // 5

    @pytest.mark.parametrize("size", [3, 4])
    def test_for_validation_share_no_group_with_training(self, size):
        task = Connections(size=size)
        train, validation = task.split("train"), task.split("validation")

        assert all(len({*words} & {*others}) < size for words in validation.values() for others in train.values())

    def test_of_the_small_variant_are_few_and_disjoint(self):
        words = [word for known in small_categories().values() for word in known]

        assert len(small_categories()) == 150
        assert len(words) == len(set(words)) == 900


class TestPuzzles:
    def test_have_exactly_one_solution(self):
        # 500 of each split, the levels in turn.
        for split in ("train", "validation"):
            for problem in Connections().problems(split, 500):
                right = frozenset(frozenset(group) for group in problem.data["groups"].values())

                assert solutions(problem.data["words"]) == {right}

    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_use_only_categories_of_their_split(self, split):
        task = Connections()
        known = task.split(split)
        for problem in task.problems(split, 100):
            groups = problem.data["groups"]

            assert set(groups) <= set(known)
            assert all(set(group) <= set(known[name]) for name, group in groups.items())
            assert len({word for group in groups.values() for word in group}) == 16
            assert sorted(problem.data["words"]) == sorted(word for group in groups.values() for word in group)

    @pytest.mark.parametrize("level", HERRINGS)
    def test_have_the_number_of_herrings_of_their_level(self, level):
        fewest, most = HERRINGS[level]
        for problem in get_task(f"connections-{level}").problems("train", 50):
            assert problem.data["level"] == level
            assert fewest <= count_herrings(problem.data["groups"], CATEGORIES) <= most

    def test_take_the_levels_in_turn(self):
        assert [p.data["level"] for p in Connections().problems("train", 4)] == ["easy", "medium", "hard", "easy"]

    def test_shuffle_their_words(self):
        together = 0
        for problem in Connections("easy").problems("train", 200):
            first, second = problem.data["words"][:2]
            together += any({first, second} <= set(group) for group in problem.data["groups"].values())

        # A neighbour is one of the three other words of its group, among fifteen, with probability 1/5: 40 are
        # expected, with a standard deviation of 5.7.
        assert 15 < together < 65

    def test_are_the_same_for_the_same_seed(self):
        task = Connections()

        assert task.problems("train", 6, seed=1) == task.problems("train", 9, seed=1)[:6]
        assert task.problems("train", 6, seed=1) != task.problems("train", 6, seed=2)
        assert len({problem.id for problem in task.problems("train", 60)}) == 60

    def test_that_cannot_be_made_raise_an_error(self):
        twins = {f"kind {number}": ("a", "b", "c", "d") for number in range(10)}

        with pytest.raises(ValueError, match="tries gave no easy puzzle of 4 groups of 4 words with one solution"):
            Connections("easy", categories=twins).problems("train", 1)

    def test_of_an_unknown_level_raise_an_error(self):
        with pytest.raises(ValueError, match="`level` \\('cruel'\\) must be one of 'easy', 'medium', 'hard'"):
            Connections("cruel")


TASK = Connections()
(PROBLEM,) = TASK.problems("train", 1)
RIGHT = list(PROBLEM.data["groups"].values())
SWAPPED = [[*RIGHT[0][:3], RIGHT[1][3]], [*RIGHT[1][:3], RIGHT[0][3]], *RIGHT[2:]]


def value(groups):
    return TASK.score(PROBLEM, groups if isinstance(groups, str) else written(groups)).value


class TestScore:
    def test_of_the_solution_is_one(self):
        score = TASK.score(PROBLEM, f"I see.\n\\boxed{{{written(RIGHT)}}}")

        assert (score.value, score.solved) == (1.0, True)
        assert set(score.detail["found"]) == set(PROBLEM.data["groups"])

    def test_counts_correct_groups_and_overlaps(self):
        score = TASK.score(PROBLEM, written(SWAPPED))

        # Two groups of four are correct, and the others have three words of four: (2 / 4 + (4 + 4 + 3 + 3) / 4 / 4) /
        # 2.
        assert score.value == pytest.approx((0.5 + 0.875) / 2)
        assert not score.solved
        assert score.detail["overlaps"] == [3, 3, 4, 4]

    def test_of_random_partitions_is_a_quarter(self):
        rng = random.Random(0)
        values = []
        for _ in range(2000):
            words = rng.sample(PROBLEM.data["words"], 16)
            values.append(value([words[start : start + 4] for start in range(0, 16, 4)]))

        # 0.247 over 20,000 partitions. The minimum has one word of each group in each.
        assert sum(values) / 2000 == pytest.approx(0.247, abs=0.01)
        assert min(values) >= 0.125

    def test_ignores_case_and_order(self):
        shuffled = [list(reversed(group)) for group in reversed(RIGHT)]

        assert value(written(shuffled).upper()) == 1.0
        assert value("\\boxed{" + "\n".join(", ".join(group) for group in RIGHT) + "}") == 1.0

    @pytest.mark.parametrize(
        "hack",
        [
            RIGHT[:1],
            RIGHT[:1] * 4,
            RIGHT[:3],
            [*RIGHT[:3], RIGHT[0]],
            [*RIGHT, RIGHT[0]],
            [*RIGHT[:3], [*RIGHT[3][:3], RIGHT[0][0]]],  # overlapping groups
            [*RIGHT[:3], [*RIGHT[3][:3], "zebra"]],  # a word that is not in the puzzle
            [*RIGHT[:3], RIGHT[3][:3]],
            [*RIGHT[:3], [*RIGHT[3], "zebra"]],
            [[word for group in RIGHT for word in group]],
            [[word] for group in RIGHT for word in group],
            written(RIGHT[:1]).upper(),
            written(RIGHT).replace(",", ""),
            "",
            "; ; ;",
            "<think>" + written(RIGHT),
            "Some prose.\n" + written(RIGHT),
        ],
    )
    def test_of_any_other_answer_is_zero(self, hack):
        assert value(hack) == 0.0

    def test_of_a_small_puzzle_uses_its_size(self):
        task = get_task("connections-small")
        (problem,) = task.problems("validation", 1)
        (first, second) = problem.data["groups"].values()

        assert task.score(problem, written([first, second])).value == 1.0
        # No group is correct, and each has two words of three: (0 + 2 / 3) / 2.
        assert task.score(problem, written([[*first[:2], second[2]], [*second[:2], first[2]]])).value == pytest.approx(
            1 / 3
        )


class TestReading:
    def test_removes_spaces(self):
        assert read_groups("\\boxed{ A b ,c;\n\nD,  e }") == [["a b", "c"], ["d", "e"]]


class TestSteps:
    def test_show_one_group_after_another(self):
        frames = TASK.steps(PROBLEM, written(SWAPPED))

        assert len(frames) == 5
        assert all(word in frames[0] for word in PROBLEM.data["words"])
        assert "3 of 4 belong together" in frames[1]
        assert f"right: {list(PROBLEM.data['groups'])[2]}" in frames[3]
        assert RIGHT[3][0] in frames[3] and RIGHT[2][0] not in frames[3].split("\n\n")[1]

    def test_describe_the_fault_of_an_invalid_answer(self):
        frames = TASK.steps(PROBLEM, written(RIGHT[:1]))

        assert len(frames) == 2
        assert "Not an answer: not 4 groups of 4 words." in frames[1]

    def test_do_not_show_the_solution(self):
        solution = TASK.solution(PROBLEM)

        assert len(solution.splitlines()) == 4
        assert all(
            word in solution and name in solution for name, group in PROBLEM.data["groups"].items() for word in group
        )
