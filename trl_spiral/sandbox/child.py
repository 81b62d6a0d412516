"""First steps of a contained process: it reports that it is contained, then reads its job."""

from __future__ import annotations

from trl_spiral.sandbox import program, trial
from trl_spiral.sandbox.program import Report
from trl_spiral.sandbox.values import decode, encode, receive, send


MOST_SOURCE = 1 << 30  # bytes of a job; the memory limit is reached long before


def serve(fd: int, peer: int | None, limit: int) -> None:
    """
    Read a job from a socket, run it and report its end.

    Args:
        fd (`int`):
            The socket.
        peer (`int`, *optional*):
            Socket to the other process of a trial.
        limit (`int`):
            Maximum size in bytes of all returned values.
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
