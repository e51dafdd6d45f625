"""Runs `foredraft` as a user does: on a terminal of its own, keys pressed when something has appeared."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios

SECONDS = 120  # until a test gives up; nothing is timed

CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A pseudo-terminal with a command running on it."""

    def __init__(self, *arguments):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.mark = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "foredraft", *map(str, arguments)],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: os.login_tty(os.dup(0)),
            env={**os.environ, "TERM": "xterm"},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def wait_for(self, text):
        """Read until the text appears after what was waited for last."""
        while text not in self.seen[self.mark :]:
            assert self._read(), f"never saw {text!r} in {self.seen!r}"
        self.mark = self.seen.index(text, self.mark) + len(text)

    def press(self, keys):
        os.write(self.master, keys)

    def press_until(self, keys, text):
        """Press again while the text does not appear: between its prompt and waiting for keys, Python's
        `input` has a moment in which a signal goes unnoticed until the next key."""
        self.press(keys)
        while text not in self.seen[self.mark :]:
            if not self._read(wait=1):
                self.press(keys)
        self.wait_for(text)

    def end(self):
        """The exit code, and all that was shown."""
        code = self.process.wait(SECONDS)
        while select.select([self.master], [], [], 0)[0]:
            self._read()
        return code, self.seen.decode()

    @property
    def is_as_before(self):
        return termios.tcgetattr(self.slave) == self.before

    def _read(self, wait=SECONDS):
        if not select.select([self.master], [], [], wait)[0]:
            return b""
        data = os.read(self.master, 65536)
        self.seen += data
        return data
