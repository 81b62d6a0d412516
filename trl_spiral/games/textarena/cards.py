"""TextArena's games with cards and stakes. The functions return legal moves from the state of an environment."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import DEALT, Family, lowercase_move, uppercase_move


def kuhn(env: Any) -> tuple[str, ...]:
    return tuple(f"[{move}]" for move in env.state.game_state["current_legal_action_tree"])


def card_name(value: int) -> str:
    """Return a card as the observations of the game of pure strategy write it."""
    return {1: "A", 11: "J", 12: "Q", 13: "K"}.get(value, str(value))


def gops(env: Any) -> tuple[str, ...]:
    hand = env.state.game_state["player_hands"][env.state.current_player_id]
    return tuple(f"[{card_name(card)}]" for card in hand)


def high_society(env: Any) -> tuple[str, ...]:
    return tuple(f"[{card}]" for card in env.state.game_state["player_money"][env.state.current_player_id])


def briscola(env: Any) -> tuple[str, ...]:
    hand = env.state.game_state["players"][env.state.current_player_id]["hand"]
    return tuple(f"[play {position}]" for position in range(1, len(hand) + 1))


def german_whist(env: Any) -> tuple[str, ...]:
    """Any card as the lead; otherwise cards of the led suit, if the hand has it."""
    state = env.state.game_state
    hand, trick = state["players"][env.state.current_player_id]["hand"], state["current_trick"]
    suit = trick[0][1]["suit"] if trick else None
    follow = [position for position, card in enumerate(hand, 1) if card["suit"] == suit]
    return tuple(f"[play {position}]" for position in follow or range(1, len(hand) + 1))


def golf(env: Any) -> tuple[str, ...]:
    """Draw or take; then swap with one's own card, or discard a drawn card."""
    state = env.state.game_state
    if state["turn_phase"] == "draw":
        return ("[draw]", "[take]") if state["discard_pile"] else ("[draw]",)
    places = product(range(1, env.num_rows + 1), range(1, env.num_columns + 1))
    swaps = tuple(f"[swap {row} {column}]" for row, column in places)
    return swaps if state.get("took_from_discard") else ("[discard]", *swaps)


def _fits(card: str, pile: list[str]) -> bool:
    """Return whether a card fits on a center pile: one rank above the last card. Kings take any rank."""
    ranks = "A23456789JQK"
    if card[0] == "K" or not pile:
        return card[0] in "AK"
    last = len(pile) - 1 if pile[-1][0] == "K" else ranks.index(pile[-1][0])
    return ranks.index(card[0]) == last + 1


def spite_and_malice(env: Any) -> tuple[str, ...]:
    """
    Plays, discards, and draws if the hand and the deck allow it.

    TextArena also accepts a draw without effect, any number of times. Here a seat without other moves is stuck.
    """
    own = env.players[env.state.current_player_id]
    tops = [pile[-1] for pile in (own["payoff"], *own["discard"]) if pile]
    moves = ["[draw]"] if len(own["hand"]) < 5 and env.deck else []
    for card in dict.fromkeys((*own["hand"], *tops)):
        playable = (index for index, pile in enumerate(env.center_piles) if _fits(card, pile))
        moves += (f"[play {card} {index}]" for index in playable)
    moves += (f"[discard {card} {index}]" for card in dict.fromkeys(own["hand"]) for index in range(4))
    return tuple(moves)


def fewest_left(env: Any) -> tuple[float, ...]:
    """Return the payoffs by the length of the payoff piles, as the environment does if no seat can move."""
    first, second = (len(env.players[seat]["payoff"]) for seat in (0, 1))
    return (1.0, -1.0) if first < second else (-1.0, 1.0) if first > second else (0.0, 0.0)


@cache
def _amounts(verb: str, most: int) -> tuple[str, ...]:
    return tuple(f"[{verb} {amount}]" for amount in range(1, most + 1))


def _stakes(verb: str, most: int) -> tuple[str, ...]:
    """Return `[bet 1]` to `[bet most]`, sliced from a cached tuple: a seat may have a thousand chips."""
    return _amounts(verb, 1 << max(0, most).bit_length())[: max(0, most)]


def indian_poker(env: Any) -> tuple[str, ...]:
    """Moves that the environment accepts: without the ante, a seat has no legal move, not even a fold."""
    state, seat = env.state.game_state, env.state.current_player_id
    chips, due = state["player_chips"][seat], state["highest_bet"] - state["current_bets"][seat]
    if chips < 0:
        return ()
    if due == 0:
        return ("[check]", "[fold]", *_stakes("bet", chips))
    return ("[fold]", *(("[call]",) if due <= chips else ()), *_stakes("raise", chips - due))


def most_chips(env: Any) -> tuple[float, ...]:
    """Return the payoffs by the number of chips, for a match of Indian poker that cannot continue."""
    first, second = env.state.game_state["player_chips"].values()
    return (1.0, -1.0) if first > second else (-1.0, 1.0) if first < second else (0.0, 0.0)


def poker(env: Any) -> tuple[str, ...]:
    """
    Folds, checks or calls, and stakes up to all chips of the seat.

    TextArena also accepts a bet below the current one as a call. Here only raises are legal after a bet.
    """
    state, seat = env.state.game_state, env.state.current_player_id
    chips, due = state["player_chips"][seat], state["current_bet"] - state["player_bets"][seat]
    if state["current_bet"] == 0:
        return ("[check]", "[fold]", *_stakes("bet", chips))
    return ("[call]" if due > 0 else "[check]", "[fold]", *_stakes("raise", chips - max(0, due)))


_STAKE = r"(check|fold|call)|(bet|raise)\s+([1-9][0-9]{0,5})"

FAMILIES = (
    Family(
        TextArenaGame("KuhnPoker-v0", "check|bet|call|fold", legal=kuhn, traits=DEALT),
        ("", "-short", "-medium", "-long", "-extreme"),
        note="bets are free, and the last round decides; Kuhn-v0 has the true rules",
    ),
    Family(
        TextArenaGame(
            "IndianPoker-v0", _STAKE, lowercase_move, indian_poker, stuck=most_chips, max_turns=2500, traits=DEALT
        ),
        ("", "-short", "-medium", "-long", "-extreme"),
        note="after a round without bets, one check ends the next; a seat that cannot pay its ante loses",
    ),
    Family(
        TextArenaGame("Poker-v0", _STAKE, lowercase_move, poker, max_turns=5000, traits=DEALT),
        ("", "-small", "-long", "-extreme"),
        note="two seats of two to fifteen; with equal chips seat 1 wins",
    ),
    Family(
        TextArenaGame("Briscola-v0", r"play\s+([123])", "[play {}]", briscola, max_turns=40, traits=DEALT),
        note="two seats of two to four (more raise AttributeError); with 60 points each seat 0 wins",
    ),
    Family(
        TextArenaGame(
            "GermanWhist-v0", r"play\s+([1-9]|1[0-3])", "[play {}]", german_whist, max_turns=52, traits=DEALT
        ),
    ),
    Family(
        TextArenaGame(
            "Golf-v0",
            r"(draw|take|discard)|(swap)\s+([1-3])\s+([1-3])",
            lowercase_move,
            golf,
            max_turns=400,
            traits=DEALT,
        ),
        ("", "-medium"),
        note="two seats of two to four (more raise AttributeError); with equal scores seat 0 wins",
    ),
    Family(
        TextArenaGame(
            "SpiteAndMalice-v0",
            r"(play|discard)\s+([a2-9jqk])\s*([♠♥♦♣])\s+([0-3])|draw",
            lambda match: f"[{match[1].lower()} {match[2].upper()}{match[3]} {match[4]}]" if match[1] else "[draw]",
            spite_and_malice,
            stuck=fewest_left,
            observation="first_last",
            max_turns=2000,
            traits=DEALT,
        ),
        note="one card per turn; [draw] is legal only if there is a card to draw; a seat without a move ends the "
        "game, and the fewest cards left win",
    ),
    Family(
        TextArenaGame("GameOfPureStrategy-v0", "(a|k|q|j|10|[2-9])", uppercase_move, gops, max_turns=26, traits=DEALT),
        simultaneous=True,
    ),
    Family(
        TextArenaGame(
            "ThreePlayerGOPS-v0",
            "(a|k|q|j|10|[2-9])",
            uppercase_move,
            gops,
            max_turns=39,
            traits=replace(DEALT, seats=3, zero_sum=False),
        ),
        simultaneous=True,
        note="two seats that tie for first get 1 each",
    ),
    Family(
        TextArenaGame(
            "HighSociety-v0", "[1-9]|1[01]", legal=high_society, observation="full", max_turns=400, traits=DEALT
        ),
        simultaneous=True,
        note="leftover money does not count, unlike in the rules",
    ),
)
