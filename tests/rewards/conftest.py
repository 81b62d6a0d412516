import pytest

from trl_spiral.sandbox import Limits, LocalSandbox


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = LocalSandbox(Limits(cpu_seconds=1.0, wall_seconds=1.5, output_bytes=2000))
    except RuntimeError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    with opened:
        yield opened
