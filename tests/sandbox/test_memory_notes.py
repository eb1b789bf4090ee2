"""What is told of a lease afterwards: bytes that were asked for, and the most that was held together."""

from __future__ import annotations

from sandbox.memory.notes import Held, merged, noted


class Clock:
    """One that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_only_what_was_held_at_one_time_adds_up() -> None:
    held = Held(Clock())
    assert held.began("candidate") and not held.began("candidate")
    held.began("judge")
    held.ended("judge", 30)
    held.began("baseline")
    held.ended("candidate", 5)
    held.began("judge")
    held.ended("judge", 1)
    held.ended("baseline", 20)
    held.ended("baseline", 99)  # it had nothing any more
    assert held.take() == 35
    assert held.take() == 0


def test_of_who_did_not_say_nothing_is_known() -> None:
    held = Held(Clock())
    held.began("candidate")
    held.ended("candidate", None)
    assert held.take() is None
    held.began("candidate")
    assert held.take() is None, "it did not give it back"
    held.began("candidate")
    held.ended("candidate", 7)
    assert held.take() == 7


def test_notes_keep_the_worst_of_each_phase() -> None:
    found = merged(
        [
            noted("race", 100, 200, 50),
            noted("race, again", None, 200, 190),
            noted("race", 40, 80, 60),
            noted("race", 100, 200, None),
            noted("check", 10, 20, None),
        ]
    )
    assert found["race"] == {
        "leases": 4,
        "asked": 100,
        "allowed": 200,
        "known": 3,
        "peak": 190,
        "of_allowed": 0.95,
        "of_asked": 1.5,
    }
    assert found["check"] == {"leases": 1, "asked": 10, "allowed": 20, "known": 0}
    assert merged([found, {}, {"check": found["check"]}])["check"]["leases"] == 2
