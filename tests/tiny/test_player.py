"""The tiny player: lessons without strategy, a lossless tokenizer, and a cache."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from trl_spiral.games import get_game
from trl_spiral.games.tictactoe import NAME
from trl_spiral.text.prompts import INSTRUCTION, PromptRenderer
from trl_spiral.text.replies import extract_move
from trl_spiral.tiny.lessons import LESSONS, tictactoe_lessons
from trl_spiral.tiny.player import TinyPlayerRecipe, make_tiny_player


QUICK = dict(steps=3, batch_size=8, hidden_size=16, num_heads=2, head_dim=8, intermediate_size=16)


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    return make_tiny_player(TinyPlayerRecipe(**QUICK), cache_dir=tmp_path_factory.mktemp("cache"))


class TestLessons:
    def test_moves_are_legal_and_uniform(self):
        rng = random.Random(0)
        first_moves = Counter()
        for _ in range(4000):
            question, reply = tictactoe_lessons(rng, reading=False, instruction=INSTRUCTION)
            listed = question.split("Available Moves:")[1].split("\n")[0]
            assert f"'{extract_move(reply)}'" in listed
            if listed.count("'[") == 9:
                first_moves[reply] += 1

        # About 4000 / 9 lessons at the empty board, so each of nine moves about 49 times; 25 to 80 is over 3 sigma.
        assert len(first_moves) == 9
        assert all(25 <= count <= 80 for count in first_moves.values())

    def test_questions_ask_for_the_result_of_a_move(self):
        rng = random.Random(1)
        replies = Counter(tictactoe_lessons(rng, reading=True, instruction=INSTRUCTION)[1] for _ in range(2000))

        assert set(replies) == {"O has won", "X has won", "draw", "the game goes on"}
        assert replies["the game goes on"] > 1000

    @pytest.mark.parametrize("game", LESSONS)
    def test_replies_are_moves_of_the_game(self, game):
        rng = random.Random(2)
        lessons = [LESSONS[game](rng, False, INSTRUCTION) for _ in range(200)]

        assert all(question.endswith(f"\n\n{INSTRUCTION}") for question, _ in lessons)
        for question, reply in lessons:
            move = extract_move(reply)
            assert get_game(game).canonical(move) == move
            # Where moves are listed, the prompt lists this one.
            assert "legal moves:" not in question or f"'{move}'" in question.split("legal moves:")[1]

    def test_moves_do_not_depend_on_the_card(self):
        rng = random.Random(3)
        replies = {card: Counter() for card in "JQK"}
        for _ in range(3000):
            question, reply = LESSONS["Kuhn-v0"](rng, False, INSTRUCTION)
            if "'[call]'" in question:
                replies[question.split("Your card is ")[1][0]][extract_move(reply)] += 1

        # Some 300 lessons a card and a move each with one half: 0.38 to 0.62 is 4 sigma.
        assert all(0.38 < moves["[call]"] / moves.total() < 0.62 for moves in replies.values())

    def test_results_of_poker_moves_are_right(self):
        rng = random.Random(4)
        asked = dict(LESSONS["Kuhn-v0"](rng, True, INSTRUCTION) for _ in range(2000))

        for question, reply in asked.items():
            mine = question.split("Your card is ")[1][0]
            other, move = question.split("If the other card is ")[1].split(",")[0].split(" and you ")
            better = "JQK".index(mine) > "JQK".index(other)
            after_a_check = "Player 0: [check]" in question and "Player 1: [bet]" not in question
            expected = {
                "[fold]": "you lose 1 chip",
                "[call]": f"you {'win' if better else 'lose'} 2 chips",
                "[bet]": "the game goes on",
                "[check]": f"you {'win' if better else 'lose'} 1 chip" if after_a_check else "the game goes on",
            }
            assert reply == expected[move], question

    def test_results_of_trades_are_right(self):
        rng = random.Random(5)
        for _ in range(100):
            question, reply = LESSONS["SimpleNegotiation-v2"](rng, True, INSTRUCTION)
            values = dict(re.findall(r"(\w+) (\d+)", question.split("worth to you: ")[1].split("\n")[0]))
            sides = re.search(r"If your \[Offer: (\d+) (\w+) -> (\d+) (\w+)\]", question).groups()
            gain = int(sides[2]) * int(values[sides[3]]) - int(sides[0]) * int(values[sides[1]])

            assert reply == ("you gain" if gain > 0 else "you lose" if gain < 0 else "nothing")


class TestTinyPlayer:
    def test_tokenizer_has_a_chat_template_and_round_trips_any_text(self, player):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(player)
        texts = ["\\boxed{[4]}", " O | X | 2 \n---+---+---\n", "Grüße, 世界 🎲", "[[GAME]GAME] '[3]', "]

        assert tokenizer.chat_template
        for text in texts:
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text

    def test_a_prompt_is_short(self, player):
        from transformers import AutoTokenizer

        renderer = PromptRenderer(AutoTokenizer.from_pretrained(player))
        prompt = renderer.prompt(get_game(NAME).start(0).observe(0))

        # Three rows, nine moves, and the text between. Counted on the real prompt; about 200 with Qwen's tokenizer.
        assert len(prompt) <= 24
        assert len(renderer.reply("\\boxed{[4]}")) == 2

    def test_a_move_is_one_token_in_every_game(self, tmp_path):
        from transformers import AutoTokenizer

        games = ("TicTacToe-v0", "Kuhn-v0", "SimpleNegotiation-v2")
        player = make_tiny_player(
            TinyPlayerRecipe(**{**QUICK, "steps": 1, "batch_size": 1500, "games": games}), cache_dir=tmp_path
        )
        renderer = PromptRenderer(AutoTokenizer.from_pretrained(player))

        # With the end of turn. An offer is its two amounts, its two resources and a bracket.
        for move, tokens in (("[4]", 2), ("[check]", 2), ("[Accept]", 2), ("[Offer: 3 Wood -> 2 Brick]", 6)):
            assert len(renderer.reply(f"\\boxed{{{move}}}")) == tokens, move
        assert len(renderer.prompt(get_game("Kuhn-v0").start(0).observe(0))) <= 40

    def test_is_made_once(self, player):
        cache = Path(player).parent
        before = sorted(path.name for path in cache.iterdir())
        again = make_tiny_player(TinyPlayerRecipe(**QUICK), cache_dir=cache)

        assert again == player
        assert sorted(path.name for path in cache.iterdir()) == before

    def test_making_it_leaves_the_random_state_and_the_threads_alone(self, tmp_path):
        torch.manual_seed(0)
        expected = torch.rand(3), torch.get_num_threads()
        torch.manual_seed(0)
        make_tiny_player(TinyPlayerRecipe(**QUICK), cache_dir=tmp_path)

        assert torch.equal(torch.rand(3), expected[0])
        assert torch.get_num_threads() == expected[1]

    def test_other_atoms_make_another_player(self, tmp_path, monkeypatch):
        monkeypatch.setattr("trl_spiral.tiny.player._make", lambda recipe, folder: folder.mkdir())
        recipe = TinyPlayerRecipe(games=("Kuhn-v0",), **QUICK)
        before = make_tiny_player(recipe, cache_dir=tmp_path)
        monkeypatch.setattr(type(get_game("Kuhn-v0")), "atoms", "[JQK]")

        assert make_tiny_player(recipe, cache_dir=tmp_path) != before

    def test_a_game_without_lessons_is_refused(self, tmp_path):
        with pytest.raises(
            ValueError, match="There is no tiny player for 'Nim-v0', only for 'TicTacToe-v0', 'Kuhn-v0'"
        ):
            make_tiny_player(TinyPlayerRecipe(games=("Nim-v0",)), cache_dir=tmp_path)
