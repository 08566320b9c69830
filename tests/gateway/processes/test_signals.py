"""Which signals end a server is up to who starts it: nohup's server outlives the terminal."""

import signal

from gateway.processes.signals import ENDS, heeded


def test_a_hangup_ends_a_server_unless_it_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert heeded() == [*ENDS] and signal.SIGHUP in ENDS
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert heeded() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)
