import re

import pytest

from tests.helpers.completions_server import CompletionsServer
from trl_spiral.engines.http.client import BadAnswer
from trl_spiral.engines.http.openai import EndpointEngine
from trl_spiral.games import get_game
from trl_spiral.players import RandomPlayer
from trl_spiral.players.endpoint import EndpointPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.selfplay.results import learning_seats
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Ending, Reply, Sampling


def first_free(body):
    """Return a reply with the first legal move of the last message."""
    moves = re.findall(r"'(\[\d\])'", body["messages"][-1]["content"].split("Available Moves")[1])
    return f"Let me see. \\boxed{{{moves[0]}}}"


@pytest.fixture
def server():
    with CompletionsServer(text=first_free) as server:
        yield server


@pytest.fixture
def observation():
    return get_game("TicTacToe-v0").start(0).observe(0)


def episodes(engine, count=12):
    players = (EndpointPlayer("rival", Sampling(max_new_tokens=64)), RandomPlayer())
    game = get_game("TicTacToe-v0")
    return list(play((referee(Start(game, players, seed, seed)) for seed in range(count)), engine))


class TestEndpointPlayer:
    def test_gets_the_same_prompt_as_a_policy(self, observation, tokenizer):
        request = EndpointPlayer("rival").ask(observation)

        rendered = tokenizer.apply_chat_template(list(request.messages), tokenize=False, add_generation_prompt=True)
        assert rendered == tokenizer.decode(PromptRenderer(tokenizer).prompt(observation))
        assert (request.prompt_ids, request.policy, request.seed) == ((), "rival", observation.seed)

    def test_turns_contain_the_move_and_no_policy(self, observation):
        player = EndpointPlayer("rival")
        turn = player.answer(observation, player.ask(observation), Reply((), (), text="So \\boxed{[4]}"))

        assert (turn.action, turn.text, turn.policy) == ("[4]", "So \\boxed{[4]}", None)

    @pytest.mark.parametrize(("reason", "truncated", "lost"), [("length", True, False), ("lost", False, True)])
    def test_a_truncated_or_lost_reply_has_no_move(self, observation, reason, truncated, lost):
        player = EndpointPlayer("rival")
        turn = player.answer(observation, player.ask(observation), Reply((), (), reason, text="\\boxed{[4]}"))

        assert (turn.action, turn.truncated, turn.lost) == (None, truncated, lost)

    def test_plays_whole_games_without_learning_seats(self, server):
        with EndpointEngine(server.url, "rival", api_key_env=None) as engine:
            played = episodes(engine)

        assert {episode.ending for episode in played} == {Ending.FINISHED}
        assert all(episode.players == ("rival", "random") for episode in played)
        assert {learning_seats(episode) for episode in played} == {()}

    def test_a_game_ends_without_result_if_the_endpoint_is_gone(self, server, caplog):
        server.kill()
        with EndpointEngine(server.url, "rival", api_key_env=None, max_retries=0) as engine:
            played = episodes(engine)

        assert {(episode.ending, episode.returns) for episode in played} == {(Ending.PLAYER_LOST, (0.0, 0.0))}
        assert len(caplog.records) == 1


@pytest.mark.vllm
class TestAgainstAVLLMServer:
    def test_uses_the_key_and_counts_requests_and_tokens(self, vllm_model_dir, monkeypatch):
        from tests.helpers.vllm_server import vllm_server

        key = "sk-of-a-real-server"
        with vllm_server(vllm_model_dir, api_key=key, served_model_name="tiny") as server:
            monkeypatch.setenv("A_KEY", key)
            with EndpointEngine(f"{server.base_url}/v1", "tiny", api_key_env="A_KEY", max_requests=40) as engine:
                played = episodes(engine, count=30)
                metrics = engine.metrics()
            monkeypatch.setenv("A_KEY", "sk-of-another")
            with EndpointEngine(f"{server.base_url}/v1", "tiny", api_key_env="A_KEY") as refused:
                with pytest.raises(BadAnswer, match="HTTP 401"):
                    episodes(refused)
            monkeypatch.setenv("A_KEY", key)
            with EndpointEngine(f"{server.base_url}/v1", "unknown", api_key_env="A_KEY") as refused:
                with pytest.raises(BadAnswer, match="HTTP 404: The model `unknown` does not exist"):
                    episodes(refused)

        assert Ending.PLAYER_LOST in {episode.ending for episode in played}  # after the budget was spent
        assert {episode.ending for episode in played} & {Ending.FINISHED, Ending.ILLEGAL_MOVE}
        assert metrics["requests"] == 40
        # A prompt has at least 20 tokens, although this tokenizer makes few tokens of a line.
        assert metrics["tokens"] - metrics["new_tokens"] > 40 * 20
        assert metrics["new_tokens"] >= 40 * 2
