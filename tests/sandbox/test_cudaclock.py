"""How long a device sleeps before what is timed on it."""

from sandbox.cudaclock import LONGEST_SLEEP_SECONDS, MARGIN, sleep_for


def test_the_sleep_outlasts_what_the_host_takes_to_queue_a_call() -> None:
    assert sleep_for(queued=1e-4, slept=2e-4) == 2e-4
    assert sleep_for(queued=1e-3, slept=2e-4) == MARGIN * 1e-3
    assert sleep_for(queued=1e-3, slept=2e-3) == 2e-3
    assert sleep_for(queued=1.0, slept=2e-4) == LONGEST_SLEEP_SECONDS
