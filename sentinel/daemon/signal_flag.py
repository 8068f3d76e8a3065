"""A flag that a signal handler may set: unlike threading.Event it takes no lock that the interrupted thread holds."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class SignalFlag:
    """Set, cleared and waited for as a threading.Event; one thread waits.

    A handler runs between two instructions of the main thread. Where that thread is inside Event.wait or Event.clear
    and has the event's lock, Event.set never returns. SimpleQueue.put may interrupt any other call of the same queue.
    """

    def __init__(self) -> None:
        self._set: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Callable from any thread, and from a signal handler."""
        self._set.put(None)

    def is_set(self) -> bool:
        """Whether it was set since it was last cleared."""
        return not self._set.empty()

    def clear(self) -> None:
        """Forgets every `set` so far."""
        while self.is_set():
            self._set.get()

    def wait(self, timeout_s: float) -> None:
        """Returns when the flag is set, or after the timeout; a set flag stays set."""
        try:
            self._set.get(timeout=timeout_s)
        except Empty:
            return
        self.set()
