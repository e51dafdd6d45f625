"""Several observers of one engine."""

import logging
from collections.abc import Callable, Sequence

from foredraft.engine.observer import EndEvent, Observer, PassEvent

log = logging.getLogger(__name__)


class Observers:
    """An observer that tells others. One that raises is reported once and left out from then on: watching
    must not hurt what is watched.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def passed(self, event: PassEvent) -> None:
        self._tell(lambda observer: observer.passed(event))

    def ended(self, event: EndEvent) -> None:
        self._tell(lambda observer: observer.ended(event))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                tell(observer)
            except Exception as error:  # whatever it is, no request may suffer from it
                self._observers.remove(observer)
                name, what = type(observer).__name__, f"{type(error).__name__}: {error}"
                log.warning("%s failed and sees nothing from here on (%s)", name, what, exc_info=error)
