"""What a contained process does first: it says that it is contained, and only then reads what it has to do."""

from __future__ import annotations

from trl_spiral.sandbox import program, trial
from trl_spiral.sandbox.program import Report
from trl_spiral.sandbox.values import decode, encode, receive, send


MOST_SOURCE = 1 << 30  # bytes of a job; its memory limit is met long before


def serve(fd: int, peer: int | None, limit: int) -> None:
    """
    Reads a job from a socket, does it, and tells how it ended.

    Args:
        fd (`int`):
            The socket.
        peer (`int`, *optional*):
            A socket to the other process of a trial.
        limit (`int`):
            Most bytes that all values may take which the job returns.
    """
    send(fd, encode("contained", 100))
    report = Report(fd, limit)
    match decode(receive(fd, MOST_SOURCE)):
        case ("run", code, calls):
            program.run(report, code, calls)
        case ("program", code, entry_points, in_place) if peer is not None:
            trial.run_program(report, code, entry_points, trial.Link(peer, limit, in_place))
        case ("tests", tests, entry_points, in_place) if peer is not None:
            trial.run_tests(report, tests, entry_points, trial.Link(peer, limit, in_place))
