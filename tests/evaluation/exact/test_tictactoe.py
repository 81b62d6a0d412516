"""Exact grading at tic-tac-toe: known numbers, through the same code that grades language models."""

import math

import pytest

from tests.helpers.precision import in_double
from trl_spiral.evaluation.exact.strategies import replies_that_are
from trl_spiral.evaluation.exact.tictactoe import best_response, grade_distribution, grade_tictactoe
from trl_spiral.evaluation.matches import play_matches, tally
from trl_spiral.games import get_game
from trl_spiral.games.tictactoe import (
    NAME,
    board_observation,
    decision_boards,
    empty_cells,
    exact_outcome,
    minimax_moves,
    minimax_policy,
    uniform_policy,
)
from trl_spiral.players import RandomPlayer
from trl_spiral.text.prompts import PromptRenderer


def pairs(tokenizer):
    """Return (board, cell, whether the reply is `\\boxed{[cell]}`) for every scored row: each cell in four forms."""
    renderer = PromptRenderer(tokenizer)
    ways = {}
    for cell in range(9):
        boxed = renderer.reply(f"\\boxed{{[{cell}]}}")
        replies = {renderer.reply(text) for text in (f"\\boxed{{{cell}}}", f"[{cell}]", f"{cell}")} | {boxed}
        ways[cell] = [reply == boxed for reply in sorted(replies)]
    rows = [(board, cell, boxed) for board in decision_boards() for cell in empty_cells(board) for boxed in ways[cell]]
    return rows


class TestGradeTicTacToe:
    def test_a_uniform_policy_gets_the_numbers_of_random_play(self, tokenizer):
        def score(prompts, replies):
            return [[-math.log(len(empty_cells(b))) if boxed else -math.inf for b, _, boxed in pairs(tokenizer)]]

        (report,) = grade_tictactoe(PromptRenderer(tokenizer), score)

        # Random against random, seat 0: .5849 / .1270 / .2881 in every table of the game.
        assert report.outcomes["random", 0].win == pytest.approx(0.58492, abs=1e-5)
        assert report.outcomes["random", 0].draw == pytest.approx(0.12698, abs=1e-5)
        assert report.outcomes["random", 1].win == pytest.approx(0.28810, abs=1e-5)
        assert report.mean("random", "illegal") == pytest.approx(0.0, abs=1e-12)

    def test_a_perfect_policy_never_loses(self, tokenizer):
        def score(prompts, replies):
            return [
                [
                    math.log(1 / len(minimax_moves(board))) if boxed and cell in minimax_moves(board) else -math.inf
                    for board, cell, boxed in pairs(tokenizer)
                ]
            ]

        (report,) = grade_tictactoe(PromptRenderer(tokenizer), score)

        assert report.mean("minimax", "draw") == pytest.approx(1.0)
        assert report.outcomes["random", 0].win == pytest.approx(0.96781, abs=1e-5)
        assert report.mean("random", "non_loss") == pytest.approx(1.0)

    def test_the_rest_to_one_is_an_illegal_reply(self, tokenizer):
        def score(prompts, replies):
            return [[math.log(0.5 / len(empty_cells(b))) if boxed else -math.inf for b, _, boxed in pairs(tokenizer)]]

        (report,) = grade_tictactoe(PromptRenderer(tokenizer), score)

        # Half of all replies are illegal: seat 0 completes its first move with probability 1/2, its second with 1/4, …
        assert report.outcomes["random", 0].illegal > 0.5
        assert report.outcomes["random", 0].loss >= report.outcomes["random", 0].illegal

    def test_a_move_without_a_box_counts_as_legal(self, tokenizer):
        def score(prompts, replies):
            bare = {PromptRenderer(tokenizer).reply(str(cell)) for cell in range(9)}
            counts = [len(empty_cells(board)) for board, _, _ in pairs(tokenizer)]
            return [[-math.log(n) if r in bare else -math.inf for n, r in zip(counts, replies, strict=True)]]

        (report,) = grade_tictactoe(PromptRenderer(tokenizer), score)

        # Such a policy was once graded as illegal although every game accepted its moves.
        assert report.outcomes["random", 0].win == pytest.approx(0.58492, abs=1e-5)
        assert report.mean("random", "illegal") == pytest.approx(0.0, abs=1e-12)

    def test_prompts_that_open_a_thought_are_refused(self, tokenizer):
        with pytest.raises(ValueError, match=r"opens a thought, so that no reply is the move \[0\] alone"):
            grade_tictactoe(PromptRenderer(tokenizer, "r1"), lambda prompts, replies: [[0.0] * len(replies)])

    def test_a_floor_hardly_changes_how_likely_a_cell_is(self, tokenizer, model_dir):
        from transformers import AutoModelForCausalLM

        from trl_spiral.engines.local.scoring import reply_logprobs

        model, renderer = in_double(AutoModelForCausalLM.from_pretrained(model_dir)), PromptRenderer(tokenizer)
        ways = {cell: replies_that_are(get_game(NAME), renderer, f"[{cell}]") for cell in range(9)}
        boards = decision_boards()[::40]
        pairs = [(board, cell, reply) for board in boards for cell in empty_cells(board) for reply in ways[cell]]
        prompts = [renderer.prompt(board_observation(board)) for board, _, _ in pairs]
        whole, cut = (
            reply_logprobs(model, prompts, [reply for _, _, reply in pairs], [0.25], floor=floor)[:, 0]
            for floor in (-math.inf, -18.0)
        )
        changes = dict.fromkeys(boards, 0.0)
        for (board, _, _), change in zip(pairs, (whole.exp() - cut.exp()).abs().tolist(), strict=True):
            changes[board] += change

        assert (whole != cut).float().mean() > 0.5
        assert max(changes.values()) < 1e-6

    @pytest.mark.slow
    def test_a_floor_does_not_change_the_results(self, tokenizer, model_dir):
        from transformers import AutoModelForCausalLM

        from trl_spiral.engines.local.scoring import reply_logprobs

        model, renderer = in_double(AutoModelForCausalLM.from_pretrained(model_dir)), PromptRenderer(tokenizer)
        reports = [
            grade_tictactoe(renderer, lambda p, r, f=floor: reply_logprobs(model, p, r, [0.25], floor=f).T.tolist())
            for floor in (-math.inf, -18.0)
        ]

        for whole, cut in zip(*reports, strict=True):
            assert cut.metrics() == pytest.approx(whole.metrics(), abs=1e-5)

    def test_exact_results_of_a_model_match_its_games(self, tokenizer, model_dir):
        from transformers import AutoModelForCausalLM

        from trl_spiral.engines.local.scoring import reply_logprobs
        from trl_spiral.engines.local.transformers import TransformersEngine
        from trl_spiral.players import PolicyPlayer
        from trl_spiral.types import Sampling

        model = AutoModelForCausalLM.from_pretrained(model_dir)
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        renderer = PromptRenderer(tokenizer)
        (report,) = grade_tictactoe(renderer, lambda p, r: reply_logprobs(model, p, r, [0.5], floor=-18.0).T.tolist())
        player = PolicyPlayer(renderer, Sampling(temperature=0.5, max_new_tokens=8))
        games = 1500
        episodes = play_matches(
            get_game(NAME), player, RandomPlayer(), 0, games, TransformersEngine(model, model.generation_config)
        )
        shares = tally(episodes, 0)
        exact = report.outcomes["random", 0]

        # Five standard deviations of a share of 1500 games are at most 0.065.
        assert shares["win"] == pytest.approx(exact.win, abs=0.065)
        assert shares["illegal"] == pytest.approx(exact.illegal, abs=0.065)


class TestBestResponse:
    def test_has_the_known_results_against_random_play(self):
        responder = exact_outcome(best_response(uniform_policy, 0), uniform_policy, 0)

        # From our table of reference values: .9948 won, 0 lost, .0052 drawn.
        assert responder.win == pytest.approx(0.9948, abs=5e-5)
        assert responder.draw == pytest.approx(0.0052, abs=5e-5)
        assert responder.loss == 0.0
        # The report contains the results of the policy, in the other seat.
        reported = grade_distribution(uniform_policy).outcomes["best_response", 1]
        assert (reported.win, reported.draw, reported.loss) == pytest.approx(
            (responder.loss, responder.draw, responder.win)
        )

    def test_draws_against_perfect_play(self):
        metrics = grade_distribution(minimax_policy).metrics()

        assert metrics["best_response/seat0/draw"] == pytest.approx(1.0)
        assert metrics["best_response/seat1/draw"] == pytest.approx(1.0)
        assert metrics["best_response/non_loss"] == pytest.approx(1.0)

    def test_always_beats_a_predictable_policy(self):
        # The policy always takes the first empty cell.
        metrics = grade_distribution(lambda board: {empty_cells(board)[0]: 1.0}).metrics()

        assert metrics["best_response/seat0/loss"] == metrics["best_response/seat1/loss"] == 1.0

    def test_exploits_illegal_replies(self):
        # Perfect, except for an illegal reply if the game begins in the last corner.
        def player(board):
            return {} if board == "........O" else minimax_policy(board)

        outcome = grade_distribution(player).outcomes["best_response", 1]

        assert (outcome.loss, outcome.illegal) == (1.0, 1.0)
