"""
Strategies of language models: known numbers for real networks, tokenizers and prompts.

The models are Qwen3 networks. Some have constant outputs, by the weights of their last layer; some have learned a
strategy (`tests/helpers/strategy_models.py`).
"""

import logging
import math

import pytest
import torch
from transformers import GenerationConfig

from tests.helpers.strategy_models import boxed, constant_model, strategy_model, tokenizer_for
from trl_spiral.engines.local.scoring import reply_logprobs
from trl_spiral.engines.local.strategies import language_model_strategy
from trl_spiral.engines.local.transformers import TransformersEngine
from trl_spiral.evaluation.exact.exploitability import nash_conv
from trl_spiral.evaluation.exact.strategies import MoveProbabilities, sampled_moves, scored_moves
from trl_spiral.evaluation.exact.tree import game_tree
from trl_spiral.players import EquilibriumPlayer, PolicyPlayer, RandomPlayer, ScriptedPlayer
from trl_spiral.players.equilibrium import kuhn_equilibrium
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Reply, Sampling


KUHN = game_tree("Kuhn-v0")
MOVES = ("[check]", "[bet]", "[call]", "[fold]")
END = {"<|im_end|>": 0.0}


@pytest.fixture(scope="module")
def kuhn_tokenizer():
    return tokenizer_for(KUHN, replies=("[call]", "call", boxed("call"), "I call."))


@pytest.fixture(scope="module")
def renderer(kuhn_tokenizer):
    return PromptRenderer(kuhn_tokenizer)


def any_move(tokenizer, **others):
    """Return a model with equal logits for each boxed move of Kuhn poker and its end, and given logits for others."""
    return constant_model(tokenizer, {boxed(move): 0.0 for move in MOVES} | END | others)


class TestLanguageModelStrategy:
    @pytest.mark.parametrize(
        ("game", "expected"),
        # From our table of reference values: OpenSpiel's, and a separate computation for liar's dice.
        [("Kuhn-v0", 0.9167), ("Leduc-v0", 4.7472), ("LiarsDice-v1-1", 1.6458)],
    )
    def test_uniform_play_has_the_known_nash_conv(self, game, expected):
        tree = game_tree(game)
        tokenizer = tokenizer_for(tree)
        moves = {boxed(move) for state in tree.states for move in state.moves}
        model = constant_model(tokenizer, dict.fromkeys((*moves, tokenizer.eos_token), 0.0))

        (found,) = language_model_strategy(model, PromptRenderer(tokenizer), game)

        assert found.nash_conv == pytest.approx(expected, abs=5e-5)
        # Two tokens, a move and the end, each with a uniform distribution; at least one move is legal.
        assert found.illegal < 1 - 1 / (len(moves) + 1) ** 2

    def test_a_learned_equilibrium_cannot_be_exploited(self, kuhn_tokenizer, renderer):
        model = strategy_model(kuhn_tokenizer, KUHN, kuhn_equilibrium(0.2).__getitem__)

        (found,) = language_model_strategy(model, renderer, "Kuhn-v0")

        # Logits of -30 in float64 leave 1e-12.
        assert found.nash_conv < 1e-9
        assert found.illegal < 1e-9

    def test_a_model_that_always_folds_loses_its_ante_in_either_seat(self, kuhn_tokenizer, renderer):
        # It folds if it can and checks otherwise. Derived by hand:
        # 1. In seat 0 it checks. The best response bets, it folds and loses its ante of 1 with any cards.
        # 2. In seat 1 it folds to a bet and loses its ante of 1 again.
        # 3. It never has more than its ante in the pot, so the value of each best response is 1.
        # 4. In a zero-sum game NashConv is the sum of the values of the best responses: 1 + 1 = 2.
        folds = strategy_model(
            kuhn_tokenizer, KUHN, lambda state: {"[fold]": 1.0} if state.endswith("b") else {"[check]": 1.0}
        )

        (found,) = language_model_strategy(folds, renderer, "Kuhn-v0")

        assert found.nash_conv == pytest.approx(2, abs=1e-9)

    def test_has_a_strategy_for_each_temperature(self, kuhn_tokenizer, renderer):
        model = constant_model(kuhn_tokenizer, {boxed(move): place * 0.5 for place, move in enumerate(MOVES)} | END)

        cold, warm = language_model_strategy(model, renderer, "Kuhn-v0", temperatures=(0.5, 1.0))

        # Logits differ by 1/2: odds are e at temperature 1/2, and the root of e at 1.
        assert cold.strategy("0")["[bet]"] == pytest.approx(math.e / (1 + math.e))
        assert warm.strategy("0")["[bet]"] == pytest.approx(1 / (1 + math.exp(-0.5)))

    def test_sums_over_all_forms_of_a_move(self, kuhn_tokenizer, renderer):
        others = {"[call]": 0.0, "call": 0.0, boxed("call"): 0.0, "I call.": 0.0}
        (found,) = language_model_strategy(any_move(kuhn_tokenizer, **others), renderer, "Kuhn-v0")

        # Four forms of a call and one of a fold, out of nine first tokens; each then ends with probability 1/9.
        assert found.mass[KUHN.states[3].first] == pytest.approx(4 / 81)
        assert found.strategy(KUHN.states[3].name) == pytest.approx({"[call]": 0.8, "[fold]": 0.2})

    def test_does_not_change_the_model(self, kuhn_tokenizer, renderer):
        model = any_move(kuhn_tokenizer).train()
        before = torch.get_rng_state()
        language_model_strategy(model, renderer, "Kuhn-v0")

        assert model.training
        assert torch.equal(torch.get_rng_state(), before)


class TestScoredMoves:
    def test_the_rest_to_1_is_illegal_and_strategies_are_normalized(self, renderer):
        bet, check = renderer.reply(boxed("[bet]")), renderer.reply(boxed("[check]"))
        fold = renderer.reply(boxed("[fold]"))

        def score(prompts, replies):
            odds = {bet: 0.1, check: 0.3, fold: 0.5}
            return [[math.log(odds[tuple(reply)]) if tuple(reply) in odds else -math.inf for reply in replies]]

        (found,) = scored_moves("Kuhn-v0", renderer, score)
        illegal = {state.name: found.illegal_at(state) for state in KUHN.states}

        assert found.strategy("0") == pytest.approx({"[check]": 0.75, "[bet]": 0.25})
        assert found.strategy("0b") == pytest.approx({"[call]": 0.0, "[fold]": 1.0})
        assert (illegal["0"], illegal["0b"]) == pytest.approx((0.6, 0.5))
        # A game has two decisions, or three after a check and a bet, with probability 3/4 x 1/4. At the first
        # decision, and at the second after a check, 0.6 is illegal; after a bet, 0.5.
        decisions = 1 + 1 + 0.75 * 0.25
        assert found.illegal == pytest.approx((0.6 + 0.75 * 0.6 + 0.25 * 0.5 + 0.75 * 0.25 * 0.5) / decisions)

    def test_warns_if_almost_no_reply_is_legal(self, renderer, caplog):
        with caplog.at_level(logging.WARNING):
            (found,) = scored_moves("Kuhn-v0", renderer, lambda prompts, replies: [[-math.inf] * len(replies)])

        assert "Of the policy's replies in Kuhn-v0, 100.00 % are illegal" in caplog.text
        # Without any legal reply the strategy is uniform.
        assert found.strategy("0") == {"[check]": 0.5, "[bet]": 0.5}

    def test_prompts_that_open_a_thought_are_refused(self, kuhn_tokenizer):
        thinking = PromptRenderer(kuhn_tokenizer, style="r1")

        with pytest.raises(ValueError, match="opens a thought, .* Sample replies instead: `samples=100`"):
            scored_moves("Kuhn-v0", thinking, lambda prompts, replies: [[0.0] * len(replies)])


class OneAtATime:
    """Answers one request at a time, the last one first, always with the same reply."""

    def __init__(self, reply):
        self.reply, self.waiting = reply, []

    def add(self, ticket, request):
        self.waiting.append(ticket)

    def step(self):
        return [(self.waiting.pop(), self.reply)]

    def abort(self, tickets):
        self.waiting = []


class TestSampledMoves:
    def test_sampled_shares_match_exact_probabilities(self, kuhn_tokenizer, renderer):
        model = constant_model(kuhn_tokenizer, {boxed(move): place * 0.5 for place, move in enumerate(MOVES)} | END)
        engine = TransformersEngine(
            model, GenerationConfig(pad_token_id=kuhn_tokenizer.pad_token_id, eos_token_id=kuhn_tokenizer.eos_token_id)
        )
        player = PolicyPlayer(renderer, Sampling(max_new_tokens=2))

        (exact,) = language_model_strategy(model, renderer, "Kuhn-v0")
        drawn = sampled_moves("Kuhn-v0", player, engine, samples=400)

        assert drawn.samples == 400
        # Five standard deviations of a share of 400 replies are at most 0.125; here they are smaller.
        assert drawn.mass == pytest.approx(exact.mass, abs=0.1)
        assert drawn.illegal == pytest.approx(exact.illegal, abs=0.1)

    def test_equal_seeds_give_equal_replies_of_any_player(self):
        found = sampled_moves("Kuhn-v0", RandomPlayer(), None, 50, seed=1)

        assert found.mass == sampled_moves("Kuhn-v0", RandomPlayer(), None, 50, seed=1).mass
        assert found.mass != sampled_moves("Kuhn-v0", RandomPlayer(), None, 50, seed=2).mass
        assert found.illegal == 0.0

    def test_other_replies_count_as_illegal(self):
        def choose(observation):
            return {0: "[check]", 1: "nonsense", 2: None}[observation.seed % 3]

        found = sampled_moves("Kuhn-v0", ScriptedPlayer("odd", choose), None, 300)
        checks = found.mass[KUHN.states[0].first]

        # Five standard deviations of a third of 300 are 0.136.
        assert checks == pytest.approx(1 / 3, abs=0.136)
        assert found.strategy("0") == {"[check]": 1.0, "[bet]": 0.0}

    def test_a_lost_reply_raises(self, renderer):
        engine = OneAtATime(Reply((), (), "lost"))

        with pytest.raises(RuntimeError, match="A reply of policy at .* in Kuhn-v0 was lost"):
            sampled_moves("Kuhn-v0", PolicyPlayer(renderer, Sampling()), engine, 1)

    def test_zero_samples_are_refused(self):
        with pytest.raises(ValueError, match=r"`samples` \(0\) must be at least 1"):
            sampled_moves("Kuhn-v0", RandomPlayer(), None, 0)


class TestInterval:
    def test_is_a_point_if_probabilities_are_exact(self):
        table = KUHN.table(kuhn_equilibrium(0.2).__getitem__)
        found = MoveProbabilities(KUHN, tuple(table)).interval()

        assert found.low == found.value == found.high == pytest.approx(0, abs=1e-12)

    def test_contains_0_for_an_equilibrium(self):
        found = sampled_moves("Kuhn-v0", EquilibriumPlayer("Kuhn-v0", 0.2), None, 64).interval()

        # A percentile interval would lie above the estimate, which is too high already: it would count the noise
        # twice.
        assert found.low == 0.0 < found.value

    def test_contains_the_true_value_and_narrows_with_the_root_of_the_samples(self):
        few, many = (sampled_moves("Kuhn-v0", RandomPlayer(), None, number).interval() for number in (40, 160))
        uniform = nash_conv(
            "Kuhn-v0", lambda state: dict.fromkeys(MOVES[2:] if state.endswith("b") else MOVES[:2], 0.5)
        )

        for found in (few, many):
            assert found.low < uniform < found.high
        # Four times the replies, half the width; the noise of the width is about 5%.
        assert (few.high - few.low) / (many.high - many.low) == pytest.approx(2, rel=0.25)

    @pytest.mark.parametrize(("bound", "resamples"), [(26 * 150, 150), (26, 100), (10**9, 1000)])
    def test_uses_fewer_resamples_for_larger_trees(self, bound, resamples, monkeypatch):
        drawn = []
        monkeypatch.setattr("trl_spiral.evaluation.exact.strategies.RESAMPLED_SEQUENCES", bound)
        found = sampled_moves("Kuhn-v0", RandomPlayer(), None, 4)
        monkeypatch.setattr(MoveProbabilities, "_resampled", lambda self, rng: drawn.append(rng) or self)

        # The tree has 26 sequences: two at each of 12 information states, and the empty one of each seat.
        assert found.interval().value == found.nash_conv
        assert len(drawn) == resamples


class TestReplyLogprobs:
    def test_chunks_of_prompts_and_floors_give_the_same_log_probabilities(self, kuhn_tokenizer, renderer, monkeypatch):
        model = strategy_model(kuhn_tokenizer, KUHN, kuhn_equilibrium(0.2).__getitem__)
        prompts = [renderer.prompt(state.observation) for state in KUHN.states for _ in MOVES]
        replies = [renderer.reply(boxed(move)) for _ in KUHN.states for move in MOVES]
        firsts = reply_logprobs(model, prompts, [reply[:1] for reply in replies], [1.0, 0.5])
        whole = reply_logprobs(model, prompts, replies, [1.0, 0.5])
        monkeypatch.setattr("trl_spiral.engines.local.scoring._MOST_LOGITS", 5 * len(kuhn_tokenizer))

        # No token reaches a floor of 0, so only first tokens are scored; at -100, all tokens are.
        assert torch.allclose(reply_logprobs(model, prompts, replies, [1.0, 0.5], floor=0.0), firsts, rtol=1e-9)
        assert torch.allclose(reply_logprobs(model, prompts, replies, [1.0, 0.5], floor=-100.0), whole, rtol=1e-9)
