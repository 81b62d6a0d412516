"""`trl-spiral serve-sandbox`: run programs for trainers on other machines."""

from __future__ import annotations

import argparse

from trl_spiral.text.printable import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trl_spiral.sandbox import Limits

    default = Limits()
    parser.description = (
        "Run programs for `RemoteSandbox`. Clients have to know the token in the environment variable "
        "TRL_SPIRAL_SANDBOX_TOKEN; it may be missing where only this machine is listened to."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at, default 127.0.0.1")
    parser.add_argument("--port", type=int, default=8200, help="port, default 8200; 0 takes one that is free")
    parser.add_argument("--workers", type=int, metavar="N", help="programs run at once; by default one for each core")
    for name, what in (
        ("cpu_seconds", "processor time of a program"),
        ("wall_seconds", "its time by the clock"),
        ("memory_mb", "its memory, in MiB"),
        ("output_bytes", "what it may print or return, in bytes"),
    ):
        value = getattr(default, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(value),
            default=value,
            metavar="N",
            help=f"{what}, default {value}",
        )
    parser.add_argument(
        "--readable",
        action="append",
        default=[],
        metavar="PATH",
        help="file or folder that programs may read, beside Python's own library; may be repeated",
    )
    parser.add_argument("--threads", action="store_true", help="let programs start threads")
    parser.add_argument("--bubblewrap", action="store_true", help="run each program in namespaces of its own, too")


def run(args: argparse.Namespace) -> None:
    import os
    import signal
    from contextlib import closing

    from trl_spiral import sandbox as sandboxes
    from trl_spiral.sandbox.messages import TOKEN_VARIABLE
    from trl_spiral.sandbox.server import SandboxServer

    limits = sandboxes.Limits(
        cpu_seconds=args.cpu_seconds,
        wall_seconds=args.wall_seconds,
        memory_mb=args.memory_mb,
        output_bytes=args.output_bytes,
        readable=tuple(args.readable),
        threads=args.threads,
    )
    # A service manager ends it by SIGTERM, and no process of the sandbox may be left then.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kind = sandboxes.BubblewrapSandbox if args.bubblewrap else sandboxes.LocalSandbox
    sandbox = kind(limits, workers=args.workers)
    with (
        closing(sandbox),
        SandboxServer(sandbox, limits, args.host, args.port, os.environ.get(TOKEN_VARIABLE)) as server,
    ):
        echo(f"Programs are run for whoever asks at {server.url}. Ctrl-C ends it.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo("Ended.")
