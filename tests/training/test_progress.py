"""Ctrl-C during a run: taken as a flag, and handed on to a caller who asks for it."""

import signal

import pytest

from bnrank.training.interruption import interruptions


def test_first_ctrl_c_is_a_flag_and_the_second_raises():
    with interruptions() as flag:
        signal.raise_signal(signal.SIGINT)
        assert flag.is_set()
    with interruptions():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_handed_on_in_the_end_to_who_handled_it_before():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with interruptions():
            signal.raise_signal(signal.SIGINT)
            assert seen == []  # not before the step is complete
        assert seen == [signal.SIGINT]
        with interruptions():
            pass
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
