"""Policy tables: files are complete, readable and can be read back."""

import json

import pytest

from trl_spiral.evaluation.exact.exploitability import nash_conv
from trl_spiral.evaluation.exact.policy_tables import format_policy_table, read_policy_table, write_policy_table
from trl_spiral.evaluation.exact.strategies import MoveProbabilities, sampled_moves
from trl_spiral.evaluation.exact.tree import game_tree
from trl_spiral.players import RandomPlayer


KUHN = game_tree("Kuhn-v0")


@pytest.fixture
def timid():
    """A policy that never bets and always folds; a quarter of its replies is illegal."""
    mass = [1.0] * KUHN.size
    for state in KUHN.states:
        for move, sequence in zip(state.moves, state.sequences, strict=True):
            mass[sequence] = 0.75 * (move in ("[check]", "[fold]"))
    return MoveProbabilities(KUHN, tuple(mass))


class TestWritePolicyTable:
    def test_writes_the_strategy_and_the_best_responses_to_it(self, timid, tmp_path):
        record = write_policy_table(timid, tmp_path / "made" / "Kuhn-v0-step-20", step=20, temperature=0.5)
        states = {entry["state"]: entry for entry in record["states"]}

        assert json.loads((tmp_path / "made" / "Kuhn-v0-step-20.json").read_text()) == record
        # A bet wins the ante of each seat (`tests/evaluation/exact/test_exploitability.py` derives it).
        assert (record["nash_conv"], record["best_response_values"], record["illegal"]) == (2.0, [1.0, 1.0], 0.25)
        assert (record["step"], record["temperature"], record["samples"]) == (20, 0.5, None)
        assert states["0p"] == {
            "state": "0p",
            "seat": 1,
            "moves": {"[check]": 0.75, "[bet]": 0.0},
            "illegal": 0.25,
            "reach": pytest.approx(1 / 3),
            "best_response": "[bet]",
        }
        assert states["0b"]["reach"] == 0.0

    def test_contains_the_number_of_openspiel(self, timid, tmp_path):
        pytest.importorskip("pyspiel")

        assert write_policy_table(timid, tmp_path / "table")["openspiel_nash_conv"] == pytest.approx(2, abs=1e-9)

    def test_can_be_read_back(self, timid, tmp_path):
        write_policy_table(timid, tmp_path / "exact")
        drawn = sampled_moves("Kuhn-v0", RandomPlayer(), None, 20)
        write_policy_table(drawn, tmp_path / "drawn")

        assert read_policy_table(tmp_path / "exact.json") == timid
        assert read_policy_table(tmp_path / "drawn.json") == drawn
        assert nash_conv("Kuhn-v0", read_policy_table(tmp_path / "drawn.json").strategy) == drawn.nash_conv


class TestFormatPolicyTable:
    def test_is_a_table_with_a_row_for_each_state(self, timid, tmp_path):
        text = format_policy_table(write_policy_table(timid, tmp_path / "table", step=20))

        assert text == (tmp_path / "table.md").read_text()
        assert text.startswith(
            "# Kuhn-v0 (step 20)\n\nExploitability 1.0000, NashConv 2.0000, from exact probabilities."
        )
        assert "| 1 | `0p` | 33.3 % | [check] 75.0 %, [bet] 0.0 % | 25.0 % | [bet] |" in text
        assert sum(line.startswith(("| 0 |", "| 1 |")) for line in text.splitlines()) == 12

    def test_contains_the_interval_of_sampled_replies(self, tmp_path):
        drawn = sampled_moves("Kuhn-v0", RandomPlayer(), None, 20)
        record = write_policy_table(drawn, tmp_path / "table")

        interval = f"(95% interval {record['nash_conv_low'] / 2:.4f} to {record['nash_conv_high'] / 2:.4f})"
        assert f"{interval}, NashConv {record['nash_conv']:.4f}, from 20 replies at each" in format_policy_table(
            record
        )

    def test_a_long_table_contains_the_most_frequent_states(self, timid, tmp_path, monkeypatch):
        monkeypatch.setattr("trl_spiral.evaluation.exact.policy_tables.MOST_ROWS", 6)
        text = format_policy_table(write_policy_table(timid, tmp_path / "table"))

        assert "6 of 12 information states" in text
        # The policy never bets, so states after a bet have probability 0.
        assert "`0p`" in text and "`0b`" not in text
