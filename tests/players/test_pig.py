"""The player of pig that rolls up to a number of points."""

import re
from dataclasses import replace

import pytest

from trl_spiral.evaluation.matches import play_matches, tally
from trl_spiral.games import game_names, get_game
from trl_spiral.players import RandomPlayer, ScriptedPlayer
from trl_spiral.players.pig import HoldPlayer


class TestHoldPlayer:
    def test_rolls_up_to_its_points_and_then_holds(self):
        player, decisions = HoldPlayer(20), []

        class Spy(ScriptedPlayer):
            def ask(self, observation):
                turn = player.ask(observation)
                text = observation.messages[0]["content"]
                total = int(re.findall(r"turn total is (\d+)", text)[-1])
                score = int(re.findall(rf"Player {observation.seat}: '(\d+)'", text)[-1])
                decisions.append((turn.action, total, score))
                return turn

        episodes = play_matches(get_game("PigDice-v0-50"), Spy("spy", None), RandomPlayer(), seat=1, games=40)

        assert all(
            action == ("[hold]" if total >= 20 or score + total >= 50 else "[roll]")
            for action, total, score in decisions
        )
        assert {action for action, total, score in decisions if score + total >= 50} == {"[hold]"}
        # It scores 8.1 points per turn, a random player 2.4. It won 0.95 of 400 games.
        assert tally(episodes, 1)["win"] > 0.75

    @pytest.mark.parametrize(
        "name",
        [name for name in game_names() if name.startswith("PigDice-v0")],
    )
    def test_reads_the_goal_from_the_rules(self, name):
        seen = get_game(name).start(0).observe(0)
        (message,) = seen.messages
        goal = int(re.search(r"First to (\d+) points", message["content"])[1])
        player = HoldPlayer(10_000, name)

        def asked_with(score):
            text = message["content"].replace("Player 0: '0'", f"Player 0: '{score}'")
            return player.ask(replace(seen, messages=({**message, "content": text},))).action

        assert asked_with(goal - 1) == "[roll]"
        assert asked_with(goal) == "[hold]"

    def test_refuses_zero_points_and_other_games(self):
        with pytest.raises(ValueError, match=r"`points` \(0\) must be at least 1"):
            HoldPlayer(0)
        with pytest.raises(
            ValueError, match="no 'hold' player for Kuhn-v0: it plays only PigDice-v0 and its variants"
        ):
            HoldPlayer(20, "Kuhn-v0")
