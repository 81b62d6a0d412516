"""The tiny player: its lessons hold rules and no strategy, its tokenizer loses nothing, and it is made once."""

import random
from collections import Counter

import pytest

from trl_spiral.games.tictactoe import NAME, random_lessons
from trl_spiral.prompts import INSTRUCTION, extract_move
from trl_spiral.tiny import TinyPlayerRecipe, make_tiny_player


QUICK = dict(steps=3, batch_size=8, hidden_size=16, num_heads=2, head_dim=8, intermediate_size=16)


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    return make_tiny_player(TinyPlayerRecipe(**QUICK), cache_dir=tmp_path_factory.mktemp("cache"))


class TestLessons:
    def test_moves_are_legal_and_uniform(self):
        rng = random.Random(0)
        first_moves = Counter()
        for _ in range(4000):
            question, reply = random_lessons(rng, reading=False, instruction=INSTRUCTION)
            listed = question.split("Available Moves:")[1].split("\n")[0]
            assert f"'{extract_move(reply)}'" in listed
            if listed.count("'[") == 9:
                first_moves[reply] += 1

        # About 4000 / 9 lessons at the empty board, so each of nine moves about 49 times; 25 to 80 is over 3 sigma.
        assert len(first_moves) == 9
        assert all(25 <= count <= 80 for count in first_moves.values())

    def test_questions_are_about_the_rules(self):
        rng = random.Random(1)
        replies = Counter(random_lessons(rng, reading=True, instruction=INSTRUCTION)[1] for _ in range(2000))

        assert set(replies) == {"O has won", "X has won", "draw", "the game goes on"}
        assert replies["the game goes on"] > 1000


class TestTinyPlayer:
    def test_has_a_chat_template_and_round_trips_any_text(self, player):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(player)
        texts = ["\\boxed{[4]}", " O | X | 2 \n---+---+---\n", "Grüße, 世界 🎲", "[[GAME]GAME] '[3]', "]

        assert tokenizer.chat_template
        for text in texts:
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text

    def test_a_prompt_is_short(self, player):
        from transformers import AutoTokenizer

        from trl_spiral.games import get_game
        from trl_spiral.prompts import PromptRenderer

        renderer = PromptRenderer(AutoTokenizer.from_pretrained(player))
        prompt = renderer.prompt(get_game(NAME).start(0).observe(0))

        # Three rows, nine moves, and what stands between. Counted on the real prompt; it was ~200 with Qwen's tokenizer.
        assert len(prompt) <= 24
        assert len(renderer.reply("\\boxed{[4]}")) == 2

    def test_is_made_once(self, player, tmp_path_factory):
        from pathlib import Path

        cache = Path(player).parent
        before = sorted(path.name for path in cache.iterdir())
        again = make_tiny_player(TinyPlayerRecipe(**QUICK), cache_dir=cache)

        assert again == player
        assert sorted(path.name for path in cache.iterdir()) == before

    def test_says_for_which_games_it_exists(self, tmp_path):
        with pytest.raises(ValueError, match="There is no tiny player for 'Nim-v0', only for 'TicTacToe-v0'"):
            make_tiny_player(TinyPlayerRecipe(game="Nim-v0"), cache_dir=tmp_path)
