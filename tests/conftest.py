"""What holds for all tests."""

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard():
    """A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
