"""What a signal's handler may ring: unlike threading.Event it takes no lock that the interrupted thread may hold."""

from __future__ import annotations

from queue import Empty, SimpleQueue

__all__ = ["Bell"]


class Bell:
    """Set, cleared and waited for as a threading.Event, by one thread that waits.

    A handler runs between two instructions of the main thread: where that is inside Event.wait or Event.clear and holds
    the event's lock, Event.set waits for it for good. SimpleQueue.put may interrupt any other call of the same queue.
    """

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """From any thread, and from a signal's handler."""
        self._rung.put(None)

    def is_set(self) -> bool:
        """Whether it was rung since it was last cleared."""
        return not self._rung.empty()

    def clear(self) -> None:
        """What was rung so far was heard."""
        while self.is_set():
            self._rung.get()

    def wait(self, timeout_s: float) -> None:
        """Returns when it is rung, or after so long; it stays rung."""
        try:
            self._rung.get(timeout=timeout_s)
        except Empty:
            return
        self.set()
