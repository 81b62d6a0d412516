import random
from collections import deque
from itertools import product

import pytest

from trl_spiral.tasks.hanoi import Hanoi, distance, follow, moves_from, read_moves, split_of


def all_distances(start):
    """Return the lowest number of moves to every state, by breadth-first search with independent rules."""
    found, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        tops = {peg: min((disk for disk, at in enumerate(state) if at == peg), default=99) for peg in range(3)}
        for origin, to in product(range(3), repeat=2):
            if tops[origin] < tops[to]:
                after = tuple(to if disk == tops[origin] else at for disk, at in enumerate(state))
                if after not in found:
                    found[after] = found[state] + 1
                    queue.append(after)
    return found


def shortest(start, goal):
    """Return a shortest solution."""
    moves = []
    while start != goal:
        move = next(
            move
            for move in moves_from(start)
            if distance(follow(start, [move]).states[-1], goal) == distance(start, goal) - 1
        )
        moves.append(list(move))
        start = follow(start, [move]).states[-1]
    return moves


START, GOAL = (0, 0, 0), (2, 2, 2)
BEST = shortest(START, GOAL)
TASK = Hanoi()
PROBLEM = TASK.problem(START, GOAL)


def value(answer):
    return TASK.score(PROBLEM, answer if isinstance(answer, str) else str(answer)).value


class TestDistance:
    @pytest.mark.parametrize("disks", [1, 2, 3, 4])
    def test_equals_that_of_a_search_between_any_two_states(self, disks):
        for start in product(range(3), repeat=disks):
            searched = all_distances(start)

            assert len(searched) == 3**disks
            assert all(distance(start, goal) == moves for goal, moves in searched.items())

    def test_of_a_whole_tower_is_two_to_the_disks_minus_one(self):
        assert [distance((0,) * disks, (2,) * disks) for disks in (1, 3, 10)] == [1, 7, 1023]

    def test_moves_the_largest_disk_twice_if_that_is_shorter(self):
        # The smaller disks are on the target of the largest disk, and their target is its start.
        assert distance((2, 2, 0), (0, 0, 2)) == all_distances((2, 2, 0))[0, 0, 2]


class TestProblems:
    def test_are_the_same_for_the_same_seed(self):
        assert TASK.problems("train", 20, seed=1) == TASK.problems("train", 20, seed=1)
        assert TASK.problems("train", 20, seed=1) != TASK.problems("train", 20, seed=2)

    def test_share_no_pair_between_the_splits(self):
        task = Hanoi((1, 2, 3))
        train, validation = (
            {problem.id for problem in task.problems(split, 3000)} for split in ("train", "validation")
        )

        assert train.isdisjoint(validation)
        # Of 3 · 2 + 9 · 8 + 27 · 26 = 780 pairs, one in five is held out.
        assert 500 < len(train) < 680 and 100 < len(validation) < 220

    def test_have_the_configured_numbers_of_disks(self):
        sizes = {len(problem.data["start"]) for problem in Hanoi((3, 5)).problems("train", 50)}

        assert sizes == {3, 5}

    def test_have_a_uniform_start(self):
        starts = [len(problem.data["start"]) for problem in Hanoi((1, 2, 3)).problems("train", 2_000)]

        # Of 3 + 9 + 27 arrangements; 0.04 is four standard errors. Held-out pairs are drawn again.
        assert starts.count(3) / len(starts) == pytest.approx(27 / 39, abs=0.04)
        assert starts.count(1) / len(starts) == pytest.approx(3 / 39, abs=0.04)

    def test_differ_in_start_and_goal(self):
        assert all(problem.data["start"] != problem.data["goal"] for problem in Hanoi((1,)).problems("train", 50))

    def test_can_be_standard(self):
        (problem,) = Hanoi((3,), standard=True).problems("validation", 1)

        assert (problem.data["start"], problem.data["goal"]) == ([0, 0, 0], [2, 2, 2])
        assert "Goal: disk 1 on peg 2, disk 2 on peg 2, disk 3 on peg 2\n" in problem.messages[0]["content"]

    def test_show_their_state(self):
        text = TASK.problem((1, 0, 0), (2, 2, 1)).messages[0]["content"]

        assert "3 disks" in text
        assert (
            "Start: disk 1 on peg 1, disk 2 on peg 0, disk 3 on peg 0\n"
            "Goal: disk 1 on peg 2, disk 2 on peg 2, disk 3 on peg 1\n" in text
        )

    def test_of_an_unknown_split_raise_an_error(self):
        with pytest.raises(ValueError, match="`split` \\('test'\\) must be 'train' or 'validation'"):
            TASK.problems("test", 1)

    def test_the_splits_do_not_depend_on_the_seed(self):
        for problem in TASK.problems("validation", 30, seed=5):
            assert split_of(tuple(problem.data["start"]), tuple(problem.data["goal"])) == "validation"


class TestTokenBudget:
    def test_bounds_the_number_of_disks(self):
        # 31 moves of 12 tokens are 372; 63 are 756.
        with pytest.raises(
            ValueError, match="6 disks may need 63 moves, some 756 tokens, and a reply has 512. .* most 5"
        ):
            Hanoi((3, 6), completion_tokens=512)
        assert Hanoi((3, 5), completion_tokens=512).disks == (3, 5)

    @pytest.mark.parametrize("tokens", [12, 35, 36, 84, 179, 180])
    def test_names_the_largest_number_that_fits(self, tokens):
        with pytest.raises(ValueError) as error:
            Hanoi((10,), completion_tokens=tokens)
        most = int(str(error.value).split("at most ")[1].split()[0])

        assert (2**most - 1) * 12 <= tokens < (2 ** (most + 1) - 1) * 12

    @pytest.mark.parametrize("disks", [(), (0,), (3, 11)])
    def test_has_other_bounds_too(self, disks):
        with pytest.raises(ValueError, match="must be numbers from 1 to 10"):
            Hanoi(disks)


class TestReading:
    @pytest.mark.parametrize(
        "answer",
        [
            "[[1, 0, 2], [2, 0, 1]]",
            "[[1,0,2],[2,0,1]]",
            "First the small one. \\boxed{[[1, 0, 2], [2, 0, 1]]}",
            "<think>[[9, 9, 9]]</think>\n\\boxed{[ [1, 0, 2] ,\n [2, 0, 1] ]}",
        ],
    )
    def test_accepts_a_list_of_moves(self, answer):
        assert read_moves(answer) == [(1, 0, 2), (2, 0, 1)]

    @pytest.mark.parametrize(
        "answer",
        [
            "",
            "[1, 0, 2]",
            "[[1, 0, 2]",
            "[[1, 0, 2]]]",
            "[[1, 0, 2],]",
            "[[1, 0]]",
            "[[1, 0, 2, 2]]",
            "[[1, 0, -2]]",
            "[[1.0, 0, 2]]",
            "[[1e0, 0, 2]]",
            "[[True, 0, 2]]",
            "[['1', 0, 2]]",
            "[[[1, 0, 2]]]",
            "[[100, 0, 2]]",
            "[[1, 0, 2], [2, 0, 1]] + [[1, 2, 1]]",
            "[[１, 0, 2]]",
            "[[١, 0, 2]]",
            "__import__('os').system('true')",
            "[[__import__('os').getpid(), 0, 2]]",
            "[[1, 0, 2] for _ in range(9)]",
            "<think>[[1, 0, 2]]",
            "Some prose.\n[[1, 0, 2]]",
        ],
    )
    def test_accepts_nothing_else(self, answer):
        assert read_moves(answer) is None
        assert value(answer) == 0.0


class TestScore:
    def test_of_the_shortest_solution_is_one(self):
        score = TASK.score(PROBLEM, f"\\boxed{{{BEST}}}")

        assert (score.value, score.solved) == (1.0, True)
        assert score.detail == {"moves": 7, "legal_moves": 7, "minimum": 7, "distance": 0, "illegal": ""}

    def test_of_a_longer_solution_is_less_but_above_any_other_reply(self):
        detour = [[1, 0, 1], [1, 1, 0], *BEST]

        # (1 + 7 / 9) / 2
        assert value(detour) == pytest.approx(8 / 9)
        assert TASK.score(PROBLEM, str(detour)).solved

    def test_increases_with_every_correct_move(self):
        values = [value(BEST[:moves]) for moves in range(8)]

        assert values[:7] == pytest.approx([moves / 14 for moves in range(7)])
        assert values[7] == 1.0

    @pytest.mark.parametrize(
        ("hack", "honest"),
        [
            (BEST[:1] + [[1, 2, 0], [1, 0, 2]] * 5, BEST[:1]),  # moves back and forth that end where one move leads
            ([[1, 0, 1], [1, 1, 0]] * 6, BEST[:1]),
            ([[1, 0, 2], [1, 2, 0]] * 5_000, BEST[:1]),  # ten thousand moves
            (BEST + [[1, 2, 0]], BEST[:6]),  # continues after the goal
            (BEST + [[1, 2, 0], [1, 0, 2]], BEST),
            (BEST + [[9, 0, 2]], BEST[:6]),
            (BEST[:3] + [[9, 0, 2]], BEST[:3]),  # no such disk
            (BEST[:3] + [[0, 0, 2]], BEST[:3]),
            (BEST[:3] + [[1, 1, 1]], BEST[:3]),  # to the same peg
            (BEST[:3] + [[3, 2, 0]], BEST[:3]),  # from another peg
            (BEST[:3] + [[1, 1, 7]], BEST[:3]),  # no such peg
            ([[3, 0, 2]], BEST[:1]),  # from below the others
            ([[1, 0, 2], [2, 0, 2]], BEST[:1]),  # onto a smaller one
            ([], BEST[:1]),
        ],
    )
    def test_of_a_reward_hack_is_below_that_of_progress(self, hack, honest):
        assert value(hack) < value(honest)

    def test_is_a_potential_of_the_final_state(self):
        rng = random.Random(0)
        for problem in TASK.problems("train", 30):
            start, goal = tuple(problem.data["start"]), tuple(problem.data["goal"])
            state, walked = start, []
            for _ in range(12):
                walked.append(rng.choice(moves_from(state)))
                state = follow(state, walked[-1:]).states[-1]
                score = TASK.score(problem, str([list(move) for move in walked]))
                made = distance(start, goal) - distance(state, goal)

                # The score is at most half of the share of the distance covered, and 0 without progress.
                assert score.solved or score.value <= max(0.0, made / distance(start, goal)) / 2
                assert (made > 0) == (score.value > 0)

    def test_of_no_moves_is_zero(self):
        assert value("[]") == 0.0


class TestSteps:
    def test_show_the_pegs_after_each_move(self):
        frames = TASK.steps(PROBLEM, str(BEST))

        assert len(frames) == 8
        assert "7 moves to go" in frames[0]
        assert frames[1] == "Disk 1 from peg 0 to peg 2\n\npeg 0: 3 2\npeg 1:\npeg 2: 1\n\n6 moves to go."
        assert frames[-1].endswith("peg 2: 3 2 1\n\n0 moves to go.")

    def test_end_with_the_illegal_move(self):
        frames = TASK.steps(PROBLEM, "[[1, 0, 2], [2, 0, 2], [1, 2, 0]]")

        assert len(frames) == 3
        assert frames[-1].endswith("Illegal: move 2, [2, 0, 2]: there is a smaller disk on peg 2")

    def test_report_an_unreadable_reply(self):
        assert TASK.steps(PROBLEM, "I give up.")[-1].endswith("No readable list of moves.")
