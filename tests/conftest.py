"""What holds for all tests."""

import signal

import pytest
from hypothesis import settings

# No test depends on how fast the machine is, as an example's deadline would.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard():
    """A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
