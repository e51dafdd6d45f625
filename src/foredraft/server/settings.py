"""How a server is run."""

from dataclasses import dataclass, field
from pathlib import Path

from foredraft.engine.engine import EngineOptions
from foredraft.errors import UsageError

MAX_BODY = 4 << 20
MAX_PORT = 65535
STDERR = "-"  # in place of a file's name


@dataclass(frozen=True)
class ServeOptions:
    """`names` are what the model is called in requests; the first is what replies call it. Without `api_keys`
    everyone may ask.
    """

    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = MAX_BODY
    request_timeout: float | None = None  # seconds from arrival to the reply's end
    drain_timeout: float = 120.0  # seconds that requests may take to end once the server is told to
    engine: EngineOptions = field(default_factory=EngineOptions)
    request_log: str | None = None  # a file's name, or STDERR
    trace_dir: Path | None = None

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise UsageError(f"the model's name in requests is {self.names!r}; give at least one character")
        if not 0 <= self.port <= MAX_PORT:
            raise UsageError(f"port is {self.port}, but must be 0 (any that is free) to {MAX_PORT}")
        if not all(self.api_keys):
            raise UsageError("an API key is empty; leave it out, or give it characters")
        if self.engine.max_running < 1 or self.engine.max_waiting < 0:
            raise UsageError(
                f"max_running is {self.engine.max_running} and max_waiting {self.engine.max_waiting}, but at "
                "least 1 must run and none can be fewer than 0"
            )
        if self.max_body_bytes < 1:
            raise UsageError(f"max_body_bytes is {self.max_body_bytes}, but must be 1 or more")
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise UsageError(f"request_timeout is {self.request_timeout}, but must be above 0 (seconds)")
        if not self.drain_timeout >= 0:
            raise UsageError(f"drain_timeout is {self.drain_timeout}, but must be 0 or more (seconds)")
