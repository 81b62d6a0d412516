"""
TextArena's games in which the seats talk, negotiate or bid. Most of their moves cannot be listed.

Games whose moves cannot be listed have a `sample` function: it returns a move that the environment accepts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import DEALT_TALK, TALK, Family


_BRACKETS = str.maketrans("[]{}", "()()")
_RESOURCES = ("Wheat", "Wood", "Sheep", "Brick", "Ore")


def clean_talk(text: str) -> str | None:
    """
    Return talk as one line of printable characters, without square and curly brackets; `None` if nothing is left.

    The result can neither contain a move nor forge a line of the game.
    """
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return line.translate(_BRACKETS).strip() or None


def in_phase(phase: str, *moves: str) -> Callable[[Any], tuple[str, ...] | None]:
    """Return a source of legal moves that lists `moves` in `phase`, and `None` in other phases."""
    return lambda env: moves if env.state.game_state["phase"] == phase else None


def sample_talk(env: Any, rng: random.Random) -> str:
    return rng.choice(("I will be fair.", "What do you think?", "Trust me."))


def sample_public(env: Any, rng: random.Random) -> str:
    return f"{{{sample_talk(env, rng)}}}"


def list_facts(env: Any) -> tuple[str, ...] | None:
    """The two facts, in the last turn of truth and deception. (TextArena accepts both at once, which always wins.)"""
    return ("[Fact 1]", "[Fact 2]") if env.state.turn == env.state.max_turns - 1 else None


def read_fact(match: re.Match[str]) -> str | None:
    return f"[Fact {match[1]}]" if match[1] else clean_talk(match.group())


def read_decision(match: re.Match[str]) -> str | None:
    """Return a decision in brackets, and other text as talk."""
    return f"[{match[1].lower()}]" if match[1] else clean_talk(match.group())


def read_public(match: re.Match[str]) -> str | None:
    """Return a decision in square brackets, and other text, up to 500 characters, as public talk in curly brackets."""
    if match[1]:
        return f"[{match[1].upper()}]"
    text = clean_talk(match.group().strip("{}"))
    return f"{{{text}}}" if text and len(text) <= 500 else None


def three_decisions(env: Any) -> tuple[str, ...] | None:
    """Decisions about both other seats."""
    if env.state.game_state["phase"] != "decision":
        return None
    first, second = (seat for seat in range(3) if seat != env.state.current_player_id)
    choices = product(("cooperate", "defect"), repeat=2)
    return tuple(f"[{first} {one}] [{second} {other}]" for one, other in choices)


def read_three_decisions(match: re.Match[str]) -> str | None:
    if match[1] is None:
        return clean_talk(match.group())
    first, second = sorted(f"[{match[seat]} {match[seat + 1].lower()}]" for seat in (1, 3))
    return f"{first} {second}"


def read_bids(match: re.Match[str]) -> str | None:
    """Return one bid per item, `[pass]`, or other text as talk; `None` if an item has two bids."""
    if match[1]:
        return "[pass]"
    bids = re.findall(r"item\s+([0-9])\s*:\s*([0-9]+)", match.group(), re.IGNORECASE) if match[2] else []
    if not bids:
        return clean_talk(match.group())
    amounts = {item: int(amount) for item, amount in bids}
    if len(amounts) < len(bids):
        return None
    return " ".join(f"[Bid on Item {item}: {amount}]" for item, amount in sorted(amounts.items()))


def sample_bids(env: Any, rng: random.Random) -> str:
    state = env.state.game_state
    if state["phase"] == "conversation":
        return sample_talk(env, rng)
    share = state["remaining_capital"][env.state.current_player_id] // env.num_items
    items = [item for item in range(env.num_items) if rng.random() < 0.8]
    return " ".join(f"[Bid on Item {item}: {rng.randint(1, share)}]" for item in items) or "[pass]"


def read_trade(match: re.Match[str]) -> str | None:
    """Return `[Offer: 3 Sheep, 2 Ore -> 5 Brick]`, `[Accept]` or `[Deny]`."""
    if match[1]:
        return f"[{match[1].title()}]"
    sides = match[2].split("->")
    lists = [_read_resources(side) for side in sides]
    return f"[Offer: {lists[0]} -> {lists[1]}]" if len(lists) == 2 and all(lists) else None


def _read_resources(text: str) -> str | None:
    """Return `3 Sheep, 2 Ore`; `None` if a resource is repeated or unknown."""
    items = [re.fullmatch(r"\s*([1-9][0-9]{0,2})\s+([a-z]+?)s?\s*", part, re.IGNORECASE) for part in text.split(",")]
    counts = {item[2].title(): item[1] for item in items if item}
    if len(counts) < len(items) or not counts.keys() <= set(_RESOURCES):
        return None
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def sample_trade(env: Any, rng: random.Random) -> str:
    """Return an answer to an open offer with probability 1/2; otherwise an offer of one resource for another."""
    state, seat = env.state.game_state, env.state.current_player_id
    own, offer = state["player_resources"][seat], state["current_offer"]
    if offer and rng.random() < 0.5:
        payable = all(own[name] >= count for name, count in offer["requested_resources"].items())
        return "[Accept]" if payable else "[Deny]"
    has = [name for name, count in own.items() if count > 0]
    return f"[Offer: 1 {rng.choice(has)} -> 1 {rng.choice(_RESOURCES)}]" if has else "[Deny]"


def ultimatum(env: Any) -> tuple[str, ...]:
    """Offers in whole dollars, or the answers to an offer."""
    if env.state.game_state["phase"] == "responding":
        return ("[accept]", "[reject]")
    return tuple(f"[offer: ${amount}]" for amount in range(env.state.game_state["pool"] + 1))


def read_split(match: re.Match[str]) -> str | None:
    """Return a proposed share of the two dollars, or an answer, capitalized as the environment requires."""
    return f"[Propose] ${float(match[2]):.2f}" if match[2] else f"[{match[1].title()}]"


def sample_split(env: Any, rng: random.Random) -> str:
    """Return an answer to an open proposal with probability 1/2; otherwise the seat's last share, or a random one."""
    seat, offer = env.state.current_player_id, env.current_proposal
    if offer["amount"] is not None and offer["proposer"] != seat and rng.random() < 0.5:
        return rng.choice(("[Accept]", "[Reject]"))
    own = env.player_proposal_history[seat]
    return f"[Propose] ${own[-1] if own else rng.randrange(201) / 100:.2f}"


def read_contract(match: re.Match[str]) -> str | None:
    """Return a proposal of eight letters, one per issue, or an answer."""
    return f"[Propose] {''.join(match[2].split()).upper()}" if match[2] else f"[{match[1].title()}]"


def sample_contract(env: Any, rng: random.Random) -> str:
    if env.state.game_state["current_proposal"] and rng.random() < 0.5:
        return rng.choice(("[Accept]", "[Reject]"))
    return "[Propose] " + "".join(rng.choices("ABCDE", k=8))


FAMILIES = (
    Family(
        TextArenaGame(
            "IteratedPrisonersDilemma-v0",
            r"(cooperate|defect)|(?s:.+)",
            read_decision,
            in_phase("decision", "[cooperate]", "[defect]"),
            sample_talk,
            max_turns=40,
            traits=TALK,
        ),
        source="decisions",
        simultaneous=True,
        note="the returns show only which seat has more",
    ),
    Family(
        TextArenaGame(
            "ThreePlayerIPD-v0",
            r"([0-2])\s+(cooperate|defect)\]?[\s,]*\[?([0-2])\s+(cooperate|defect)|(?s:.+)",
            read_three_decisions,
            three_decisions,
            sample_talk,
            max_turns=30,
            traits=replace(TALK, seats=3, zero_sum=False),
        ),
        source="decisions",
        simultaneous=True,
    ),
    Family(
        TextArenaGame(
            "PublicGoodsGame-v0",
            r"([0-9]{1,2})|(?s:.{1,502})",
            read_public,
            in_phase("decision", *(f"[{tokens}]" for tokens in range(21))),
            sample_public,
            max_turns=48,
            traits=replace(TALK, seats=4, zero_sum=False),
        ),
        source="decisions",
        simultaneous=True,
        note="four seats of up to twelve",
    ),
    Family(
        TextArenaGame(
            "MarketEntryGame-v0",
            r"([es])|(?s:.{1,502})",
            read_public,
            in_phase("decision", "[E]", "[S]"),
            sample_public,
            max_turns=80,
            traits=replace(TALK, seats=4, zero_sum=False),
        ),
        source="decisions",
        simultaneous=True,
        note="four seats of up to twelve",
    ),
    Family(
        TextArenaGame(
            "TruthAndDeception-v0",
            r"fact\s*([12])|(?s:.+)",
            read_fact,
            list_facts,
            sample_talk,
            max_turns=50,
            traits=DEALT_TALK,
        ),
        ("", "-long", "-extreme"),
        source="decisions",
    ),
    Family(
        TextArenaGame(
            "SimpleBlindAuction-v0",
            r"(pass)|(bid\s+on\s+item\s+[0-9]\s*:\s*[1-9][0-9]{0,4}"
            r"(?:\][\s,]*\[bid\s+on\s+item\s+[0-9]\s*:\s*[1-9][0-9]{0,4})*)|(?s:.+)",
            read_bids,
            sample=sample_bids,
            max_turns=12,
            traits=DEALT_TALK,
        ),
        ("", "-quick", "-rich"),
        source="none",
        simultaneous=True,
        note="losing bids are paid too; other text passes",
    ),
    Family(
        TextArenaGame(
            "SimpleNegotiation-v0",
            r"(accept|deny)|offer\s*(?::\s*)?([^\s:\[\]][^\[\]]*)",
            read_trade,
            sample=sample_trade,
            max_turns=31,
            traits=DEALT_TALK,
        ),
        ("", "-short", "-long"),
        source="none",
        note="[Deny] leaves an offer open, even for its proposer; one turn more than announced; SimpleNegotiation-v2 "
        "has neither defect",
    ),
    Family(
        TextArenaGame(
            "IteratedUltimatumGame-v0",
            r"offer\s*(?::\s*)?\$?([0-9]|[1-4][0-9]|50)|(accept|reject)",
            lambda match: f"[offer: ${match[1]}]" if match[1] else f"[{match[2].lower()}]",
            ultimatum,
            max_turns=12,
        ),
        ("", "-alternate"),
    ),
    Family(
        TextArenaGame(
            "TwoDollar-v0",
            r"(accept|reject)|\[?propose\]?\s*\$?([01](?:\.[0-9]{1,2})?|2(?:\.00?)?)",
            read_split,
            sample=sample_split,
            max_turns=20,
            traits=DEALT_TALK,
        ),
        source="none",
        note="each seat has secret orders; proposals without talk",
    ),
    Family(
        TextArenaGame(
            "NewRecruit-v0",
            r"(accept|reject)|\[?propose\]?\s*((?:[a-e]\s?){8})",
            read_contract,
            sample=sample_contract,
            max_turns=11,
            traits=TALK,
        ),
        source="none",
        note="proposals without talk",
    ),
)
