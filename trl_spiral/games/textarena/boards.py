"""
TextArena's board games, all of perfect information.

The functions return the legal moves, in canonical form, from the state of an environment. A move is legal if the
environment accepts it, even if the rules of the game differ. `()` means that the seat to move has no legal move.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import Family, lowercase_move, no_winner, uppercase_move


Squares = tuple[tuple[int, int], ...]

_STEPS = tuple((row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0))
_KNIGHT = ((2, 1), (2, -1), (-2, 1), (-2, -1), (1, 2), (1, -2), (-1, 2), (-1, -2))
_FILES = "abcdefghij"


@cache
def _neighbors(row: int, column: int, size: int, steps: Squares) -> Squares:
    """Return the squares of a board that are one step away."""
    near = ((row + down, column + right) for down, right in steps)
    return tuple((r, c) for r, c in near if 0 <= r < size and 0 <= c < size)


@cache
def _from_above(row: int, column: int, size: int) -> str:
    """Return the name of a square on a board whose last row is rank 1."""
    return f"{_FILES[column]}{size - row}"


def connect_four(env: Any) -> tuple[str, ...]:
    top = env.state.game_state["board"][0]
    return tuple(f"[col {column}]" for column, cell in enumerate(top) if cell == ".")


def nim(env: Any) -> tuple[str, ...]:
    piles = env.state.game_state["piles"]
    return tuple(f"[{pile} {count}]" for pile, size in enumerate(piles) for count in range(1, size + 1))


def numbered_cells(env: Any) -> tuple[str, ...]:
    """Empty cells of a square board by number (tic-tac-toe, SimpleTak)."""
    cells = (cell for row in env.state.game_state["board"] for cell in row)
    return tuple(f"[{number}]" for number, cell in enumerate(cells) if cell == "")


def wild_tictactoe(env: Any) -> tuple[str, ...]:
    cells = (cell for row in env.state.game_state["board"] for cell in row)
    return tuple(f"[{mark} {number}]" for number, cell in enumerate(cells) if cell == "" for mark in "XO")


def quantum_tictactoe(env: Any) -> tuple[str, ...]:
    """Ordered pairs of free cells: a mark collapses to its first cell if that is free."""
    cells = (cell for row in env.state.game_state["board"] for cell in row)
    free = [number for number, cell in enumerate(cells) if not cell]
    return tuple(f"[{a},{b}]" for a in free for b in free if a != b)


def ultimate_tictactoe(env: Any) -> tuple[str, ...]:
    state = env.state.game_state
    forced = state["next_micro_board"]
    return tuple(
        f"[{macro} {micro}]"
        for macro in (range(9) if forced is None else (forced,))
        if state["macro_board"][macro // 3][macro % 3] == " "
        for micro in range(9)
        if state["board"][macro][micro // 3][micro % 3] == " "
    )


def othello(env: Any) -> tuple[str, ...]:
    """The moves that the environment stores. A seat without moves passes with any text."""
    moves = env.state.game_state["valid_moves"]
    return tuple(f"[{row}, {column}]" for row, column in moves) or ("[skip]",)


def breakthrough(env: Any) -> tuple[str, ...]:
    """Steps ahead to an empty square and diagonal captures. White moves up."""
    board, size = env.state.game_state["board"], env.board_size
    own, other, up = ("W", "B", 1) if env.state.current_player_id == 0 else ("B", "W", -1)
    moves = []
    for row, line in enumerate(board):
        for column in (column for column, piece in enumerate(line) if piece == own):
            for to_row, to_column in _neighbors(row, column, size, ((up, -1), (up, 0), (up, 1))):
                if board[to_row][to_column] == ("" if to_column == column else other):
                    moves.append(f"[{_FILES[column]}{row + 1}{_FILES[to_column]}{to_row + 1}]")
    return tuple(moves)


def alquerque(env: Any) -> tuple[str, ...]:
    """Steps ahead, and jumps over a neighbor in any direction."""
    board, seat = env.state.game_state["board"], env.state.current_player_id
    own, other, ahead = ("R", "B", -1) if seat == 0 else ("B", "R", 1)
    moves = []
    for row, line in enumerate(board):
        for column in (column for column, piece in enumerate(line) if piece == own):
            for near_row, near_column in _neighbors(row, column, 5, _STEPS):
                beyond = (2 * near_row - row, 2 * near_column - column)
                if board[near_row][near_column] == "" and near_row - row == ahead:
                    to = near_row, near_column
                elif board[near_row][near_column] == other and _is_empty(board, *beyond):
                    to = beyond
                else:
                    continue
                moves.append(f"[{_from_above(row, column, 5)} {_from_above(*to, 5)}]")
    return tuple(moves)


def _is_empty(board: list[list[str]], row: int, column: int) -> bool:
    return 0 <= row < len(board) and 0 <= column < len(board) and board[row][column] == ""


def crusade(env: Any) -> tuple[str, ...]:
    """Moves of chess knights, for every piece."""
    board, own = env.state.game_state["board"], "WB"[env.state.current_player_id]
    return tuple(
        f"[{_from_above(row, column, 8)} {_from_above(to_row, to_column, 8)}]"
        for row, line in enumerate(board)
        for column, piece in enumerate(line)
        if piece == own
        for to_row, to_column in _neighbors(row, column, 8, _KNIGHT)
        if board[to_row][to_column] != own
    )


def lines_of_action(env: Any) -> tuple[str, ...]:
    """Moves along a line by the number of pieces on the line. A piece may jump over its own side only."""
    board, own = env.state.game_state["board"], "OX"[env.state.current_player_id]
    pieces = [(r, c) for r, line in enumerate(board) for c, piece in enumerate(line) if piece]
    rows, columns, down, up = ([0] * 15 for _ in range(4))
    for r, c in pieces:
        rows[r] += 1
        columns[c] += 1
        down[r - c + 7] += 1
        up[r + c] += 1
    moves = []
    for r, c in pieces:
        if board[r][c] != own:
            continue
        for dr, dc in _STEPS:
            length = rows[r] if dr == 0 else columns[c] if dc == 0 else down[r - c + 7] if dr == dc else up[r + c]
            to_r, to_c = r + dr * length, c + dc * length
            if not (0 <= to_r < 8 and 0 <= to_c < 8) or board[to_r][to_c] == own:
                continue
            if all(board[r + dr * step][c + dc * step] in ("", own) for step in range(1, length)):
                moves.append(f"[{_from_above(r, c, 8)}{_from_above(to_r, to_c, 8)}]")
    return tuple(moves)


def santorini(env: Any) -> tuple[str, ...]:
    return tuple(filter(None, env.state.game_state["valid_moves"].split(", ")))


def chopsticks(env: Any) -> tuple[str, ...]:
    """Attacks between hands with fingers, and all splits of one's fingers except the current one."""
    seat, hands = env.state.current_player_id, env.state.game_state["hands"]
    own, other = hands[seat], hands[1 - seat]
    attacks = (f"[attack {a} {b}]" for a in (0, 1) if own[a] for b in (0, 1) if other[b])
    total = sum(own)
    return (*attacks, *(f"[split {left} {total - left}]" for left in range(total + 1) if left != own[0]))


FAMILIES = (
    Family(
        TextArenaGame(
            "ConnectFour-v0", r"(?:col\s*)?([0-9]|1[0-4])", "[col {}]", connect_four, observation="first_last"
        ),
        ("", "-large"),
    ),
    Family(
        TextArenaGame("ConnectFour-v0-blind", r"(?:col\s*)?([0-9])", "[col {}]", connect_four, max_turns=42),
        note="the board is never shown; both seats read every move",
    ),
    Family(
        TextArenaGame("Nim-v0", r"([0-9])\s+([0-9]|1[01])", "[{} {}]", nim, observation="first_last", max_turns=34),
        ("", "-medium", "-large"),
    ),
    Family(
        TextArenaGame("SimpleTak-v0", "[0-9]|[1-5][0-9]|6[0-3]", legal=numbered_cells, observation="first_last"),
        ("", "-medium", "-large", "-extreme"),
    ),
    Family(
        TextArenaGame(
            "WildTicTacToe-v0",
            r"([xo])\s+([0-8])",
            uppercase_move,
            wild_tictactoe,
            observation="first_last",
            max_turns=9,
        )
    ),
    Family(
        TextArenaGame(
            "QuantumTicTacToe-v0",
            r"([0-8])\s*+,?\s*+([0-8])",
            "[{},{}]",
            quantum_tictactoe,
            stuck=no_winner,
            max_turns=60,
        ),
        note="if a collapse completes lines of both seats, seat 1 wins",
    ),
    Family(
        TextArenaGame(
            "UltimateTicTacToe-v0",
            r"([0-8])\s*+,?\s*+([0-8])",
            "[{} {}]",
            ultimate_tictactoe,
            stuck=no_winner,
            observation="first_last",
            latest=2,  # which board to play on, and all boards
            max_turns=81,
        )
    ),
    Family(
        TextArenaGame(
            "Othello-v0",
            r"([0-9]|1[0-3])\s*+,?\s*+([0-9]|1[0-3])|skip",
            lambda match: f"[{match[1]}, {match[2]}]" if match[1] else "[skip]",
            othello,
            observation="first_last",
            max_turns=400,
        ),
        ("", "-tiny", "-small", "-big", "-huge", "-hard"),
        note="a seat without a move plays [skip]",
    ),
    Family(
        TextArenaGame(
            "Breakthrough-v0",
            r"([a-j])([1-9]|10)\s*([a-j])([1-9]|10)",
            "[{}{}{}{}]",
            breakthrough,
            observation="first_last",
            max_turns=400,
        ),
        ("", "-tiny", "-small", "-large", "-long"),
        note="a seat without a move ends the match without a winner",
    ),
    Family(
        TextArenaGame(
            "Breakthrough-v0-blind",
            r"([a-h])([1-8])\s*([a-h])([1-8])",
            "[{}{}{}{}]",
            breakthrough,
            max_turns=400,
        ),
        note="the board is never shown; both seats read every move",
    ),
    Family(
        TextArenaGame(
            "Alquerque-v0",
            r"([a-e][1-5])\s+([a-e][1-5])",
            "[{} {}]",
            alquerque,
            observation="first_last",
            max_turns=60,
        )
    ),
    Family(
        TextArenaGame(
            "Crusade-v0",
            r"([a-h][1-8])\s+([a-h][1-8])",
            "[{} {}]",
            crusade,
            observation="first_last",
            max_turns=40,
        )
    ),
    Family(
        TextArenaGame(
            "LinesOfAction-v0",
            r"([a-h][1-8])[\s>]*([a-h][1-8])",
            "[{}{}]",
            lines_of_action,
            observation="first_last",
            max_turns=600,
        ),
        note="a draw by repetition counts positions that the board does not show",
    ),
    Family(
        TextArenaGame(
            "SantoriniBaseFixed-v0",
            r"([nw][12])\s*([a-e][1-5])\s*([a-e][1-5])\s*([a-e][1-5])",
            lambda match: f"[{''.join(match.groups()).upper()}]",
            santorini,
            observation="first_last",
            max_turns=110,
        )
    ),
    Family(
        TextArenaGame(
            "Chopsticks-v0",
            r"(attack)\s+([01])\s+([01])|(split)\s+([0-9]{1,2})\s+([0-9]{1,2})",
            lowercase_move,
            chopsticks,
            observation="first_last",
            max_turns=82,
        ),
        ("", "-medium", "-long"),
        note="a split may leave more than four fingers on a hand",
    ),
    Family(
        TextArenaGame(
            "ThreePlayerTicTacToe-v0",
            "[0-9]|1[0-9]|2[0-4]",
            legal=numbered_cells,
            observation="first_last",
            max_turns=25,
            traits=Traits(seats=3, zero_sum=False),
        ),
        note="the return is 1 for the winner and -1 for each of the others",
    ),
)
