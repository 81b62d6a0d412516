"""Games as TRL environments: called directly, and in a plain `GRPOTrainer` with a tiny model that calls the tool."""

import logging
import pickle
import random
import re

import pytest
from trl import GRPOConfig, GRPOTrainer

from tests.conftest import make_model, make_tokenizer
from tests.helpers.completions_server import CompletionsServer
from tests.helpers.games import AskingPlayer, EchoEngine, LastStone
from trl_spiral.engines.http.openai import EndpointEngine
from trl_spiral.game_environment import HOW_TO_MOVE, GameEnvironment
from trl_spiral.games import get_game
from trl_spiral.players import EndpointPlayer, RandomPlayer, ScriptedPlayer
from trl_spiral.sandbox import CannotContain
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Forfeit, Start, play, referee
from trl_spiral.types import Ending, Turn


def moves(text):
    """Return the legal moves that a tic-tac-toe observation lists."""
    return re.findall(r"'(\[\d\])'", text.partition("Available Moves")[2])


def play_on(environment, seen, rng):
    """Play random legal moves until the game is over; return the last answer of the tool."""
    while environment.episode is None:
        seen = environment.play(rng.choice(moves(seen)))
    return seen


class LeavingPlayer(ScriptedPlayer):
    """An opponent that fails when it is asked."""

    def __init__(self):
        super().__init__("leaver", lambda observation: None)

    def ask(self, observation):
        return Turn(action=None, lost=True)


class TestReset:
    def test_equal_rows_start_the_same_game(self):
        environment = GameEnvironment("TicTacToe-v0")
        first, second = (one.reset(prompt=[], seed=5) for one in (environment(), environment()))

        assert first == second
        assert first.startswith("You are Player ") and first.endswith(HOW_TO_MOVE)
        assert environment.reset(seed=5) == first, "nothing but the seed counts where there is one"

    def test_seats_are_drawn_uniformly(self):
        environment = GameEnvironment(LastStone())
        seats = [re.search(r"seat (\d)", environment.reset(seed=seed))[1] for seed in range(600)]

        # Of 600 fair draws among three, 200 each with a standard deviation of 11.5.
        assert all(140 < seats.count(seat) < 260 for seat in "012")

    def test_the_opponent_moves_before_a_fixed_second_seat(self):
        environment = GameEnvironment("TicTacToe-v0", seat=1)

        assert {len(moves(environment.reset(seed=seed))) for seed in range(8)} == {8}

    def test_rows_without_a_seed_are_seeded_by_their_columns_with_one_warning(self, caplog):
        environment = GameEnvironment(LastStone(), seat=0)
        with caplog.at_level(logging.WARNING, "trl_spiral"):
            texts = [environment.reset(prompt=[{"role": "user", "content": str(row % 5)}]) for row in range(20)]

        assert texts[:5] * 4 == texts
        assert len(set(texts)) > 1
        assert [record.message.count("GameEnvironment.dataset(1024)") for record in caplog.records] == [1]

    def test_refuses_a_seat_that_does_not_exist(self):
        with pytest.raises(ValueError, match=r"`seat` \(2\) must be a seat of TicTacToe-v0, 0 to 1"):
            GameEnvironment("TicTacToe-v0", seat=2)

    def test_refuses_a_game_that_this_machine_cannot_play(self, no_sandbox):
        with pytest.raises(CannotContain, match="Nothing here contains programs"):
            GameEnvironment("CodeGame-v0")


class TestPlay:
    @pytest.mark.parametrize("seed", range(6))
    def test_gives_the_episode_of_the_referee(self, seed):
        environment = GameEnvironment("TicTacToe-v0", seat=seed % 2)
        play_on(environment, environment.reset(seed=seed), random.Random(seed))
        mine = iter([move for seat, move in environment.episode.moves if seat == seed % 2])
        players = [RandomPlayer(), RandomPlayer()]
        players[seed % 2] = ScriptedPlayer("policy", lambda observation: next(mine))
        game = derive_seed("environment", seed)
        start = Start(get_game("TicTacToe-v0"), players, derive_seed(game, "match"), derive_seed(game, "play"))

        assert list(play([referee(start)])) == [environment.episode]
        assert environment.get_reward() == environment.episode.returns[seed % 2]

    def test_moves_after_the_end_change_nothing(self):
        environment = GameEnvironment("TicTacToe-v0", seat=0)
        last = play_on(environment, environment.reset(seed=0), random.Random(0))
        episode, reward = environment.episode, environment.get_reward()

        assert re.fullmatch(r"The game is over: (you won|you lost|it is a draw)\. Your return is -?[01]\.", last)
        assert environment.play("[4]") == f"You cannot move any more. {last}"
        assert environment.episode is episode
        assert environment.get_reward() == reward

    @pytest.mark.parametrize("move", ["[9]", "no idea\nat all", ""])
    def test_an_illegal_move_forfeits(self, move):
        environment = GameEnvironment("TicTacToe-v0", seat=0, forfeit=Forfeit(-1.5, 0.5))
        environment.reset(seed=0)

        assert environment.play(move) == "The game is over: your move was illegal. Your return is -1.5."
        assert environment.get_reward() == -1.5
        assert environment.episode.ending is Ending.ILLEGAL_MOVE

    @pytest.mark.parametrize("move", [4, "4", "[4]", r"\boxed{[4]}"])
    def test_accepts_a_move_in_different_notations(self, move):
        environment = GameEnvironment("TicTacToe-v0", seat=0)
        environment.reset(seed=0)

        assert "[4]" not in moves(environment.play(move))

    def test_an_unfinished_game_is_forfeited(self):
        environment = GameEnvironment("TicTacToe-v0", seat=0, forfeit=Forfeit(-1.5, 0.5))
        environment.reset(seed=0)
        environment.play("[4]")

        assert environment.get_reward() == -1.5

    def test_an_unfinished_game_costs_at_least_the_worst_result(self):
        environment = GameEnvironment("Leduc-v0", seat=0)
        environment.reset(seed=0)

        assert environment.get_reward() == -13.0

    def test_a_game_that_was_broken_off_has_no_reward(self):
        environment = GameEnvironment("TicTacToe-v0", opponent=LeavingPlayer(), seat=1)

        assert environment.reset(seed=0) == "The game is over: it was broken off and does not count."
        assert environment.get_reward() is None

    def test_plays_a_game_with_three_seats(self):
        environment = GameEnvironment(LastStone(), seat=1)
        for seed in range(12):
            environment.reset(seed=seed)
            while environment.episode is None:
                environment.play("1")
            won = environment.episode.returns[1] == 1.0

            assert environment.episode.players == ("random", "policy", "random")
            assert environment.get_reward() == (1.0 if won else -0.5)

    def test_refuses_a_move_before_the_first_reset(self):
        with pytest.raises(ValueError, match="Call `reset` first"):
            GameEnvironment("TicTacToe-v0").play("[4]")


class TestOpponentsWithAnEngine:
    def test_get_replies_from_the_engine(self):
        engine = EchoEngine()
        environment = GameEnvironment(LastStone(), opponent=AskingPlayer(), engine=engine, seat=0)
        environment.reset(seed=0)
        environment.play("1")

        assert engine.answered == 2

    def test_can_be_endpoints(self):
        with CompletionsServer() as server:
            engine = EndpointEngine(server.url, "guest", api_key_env=None)
            environment = GameEnvironment("TicTacToe-v0", EndpointPlayer("guest"), seat=1, engine=engine)
            seen = environment.reset(seed=0)
            engine.close()

        assert environment.opponent.name == "guest"
        assert "[4]" not in moves(seen)

    def test_an_error_in_the_tool_is_raised_again_by_get_reward(self):
        environment = GameEnvironment("TicTacToe-v0", opponent=AskingPlayer(), seat=0)
        environment.reset(seed=0)
        with pytest.raises(ValueError, match="'asking' needs an engine"):
            environment.play("[4]")

        with pytest.raises(ValueError, match="'asking' needs an engine"):
            environment.get_reward()


class TestCopies:
    def test_each_plays_a_game_of_its_own(self):
        environment = GameEnvironment("TicTacToe-v0", seat=0)
        environment.reset(seed=0)
        other = environment()
        other.reset(seed=0)
        environment.play("[9]")

        assert environment.episode is not None
        assert other.episode is None

    @pytest.mark.parametrize("game", ["TicTacToe-v0", "ConnectFour-v0", "PigDice-v0-50"])
    def test_can_be_pickled_without_a_running_game(self, game):
        environment = GameEnvironment(game, seat=0, forfeit=Forfeit(-2.0, 1.0))()
        seen = environment.reset(seed=3)
        other = pickle.loads(pickle.dumps(environment))

        assert other.get_reward() == -2.0
        assert other.reset(seed=3) == seen


# As Qwen3 writes tool calls, without its thinking.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>{{ message.content }}</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def conversations(environment, games):
    """Return games of a random player as chats with tool calls, up to the end of the game."""
    for seed in range(games):
        rng = random.Random(seed)
        seen = environment.reset(seed=seed)
        messages = [{"role": "user", "content": seen}]
        while environment.episode is None:
            call = {"name": "play", "arguments": {"move": rng.choice("12")}}
            seen = environment.play(**call["arguments"])
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            )
            messages.append({"role": "tool", "name": "play", "content": seen})
        yield [*messages, {"role": "assistant", "content": "Done."}]


@pytest.fixture(scope="module")
def tool_caller():
    """Train a tiny model for a few seconds to call the tool with a move; return it and its tokenizer."""
    import torch

    environment = GameEnvironment(LastStone())
    chats = list(conversations(environment, 40))
    options = dict(chat_template=TOOL_TEMPLATE, tools=[environment.play], tokenize=False)
    # The first tokenizer only renders; the second has seen what it is to read, so that a line is a few tokens.
    renderer = make_tokenizer([], TOOL_TEMPLATE)
    tokenizer = make_tokenizer([renderer.apply_chat_template(chat, **options) for chat in chats], TOOL_TEMPLATE)
    tokenizer.response_template = RESPONSE_TEMPLATE
    model = make_model(tokenizer)
    pairs = []
    for chat in chats:
        for turn in range(1, len(chat), 2):
            prompt = tokenizer.apply_chat_template(chat[:turn], add_generation_prompt=True, **options)
            whole = tokenizer.apply_chat_template(chat[: turn + 1], **options)
            reply = whole[len(prompt) :].rstrip("\n")
            pairs.append([tokenizer.encode(text, add_special_tokens=False) for text in (prompt, reply)])
    rng = random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        chosen = rng.sample(pairs, 8)
        width = max(len(p) + len(r) for p, r in chosen)
        ids = torch.tensor([[*p, *r] + [tokenizer.pad_token_id] * (width - len(p) - len(r)) for p, r in chosen])
        labels = torch.tensor([[-100] * len(p) + [*r] + [-100] * (width - len(p) - len(r)) for p, r in chosen])
        model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


class TestInAPlainTrainer:
    def test_a_model_that_calls_the_tool_is_trained_on_the_returns(self, tool_caller, tmp_path):
        model, tokenizer = tool_caller
        environment = GameEnvironment(LastStone(), opponent="random")
        seen = []

        def watch(environments, **kwargs):
            seen.append([(one.episode, one.get_reward()) for one in environments])
            return [0.0] * len(environments)

        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=watch,
            environment_factory=environment,
            train_dataset=environment.dataset(64),
            args=GRPOConfig(
                output_dir=str(tmp_path),
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=512,
                learning_rate=1e-3,  # large, so that two steps move a tiny model
                max_steps=2,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
            ),
        )
        before = model.lm_head.weight.detach().clone()
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "rewards/GameEnvironment/mean" in entry]

        assert [tool.__name__ for tool in trainer.tools] == ["play"]
        assert len(seen) == 2
        for entry, batch in zip(logged, seen, strict=True):
            rewards = [reward for _, reward in batch]
            assert entry["rewards/GameEnvironment/mean"] == pytest.approx(sum(rewards) / len(rewards))
            assert entry["tools/failure_frequency"] == 0.0
            # Groups share their rows, so the first is one game and the second another.
            assert all(
                len({episode.seed for episode, _ in batch[start : start + 4] if episode}) == 1 for start in (0, 4)
            )
        episodes = [episode for batch in seen for episode, _ in batch if episode]
        assert {reward for batch in seen for _, reward in batch} >= {-0.5, 1.0}
        assert max(len(episode.trajectories[episode.players.index("policy")].turns) for episode in episodes) >= 2
        assert not before.equal(model.lm_head.weight)
