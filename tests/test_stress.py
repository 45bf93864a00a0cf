"""A sample of the stress test of threads; all of it is a command, see tests/stress.py."""

import stress


def test_other_threads_and_the_library_do_not_touch_each_other():
    outcome = stress.run(rounds=17, compressed=17)
    assert len(outcome) == len(stress.STREAMS) + len(stress.calls())
    assert all(text.startswith("0 of ") for text in outcome.values()), outcome
    assert not any(text.startswith("0 of 0 ") for text in outcome.values()), outcome
