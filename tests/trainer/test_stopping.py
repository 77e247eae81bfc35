"""The first signal is noted, its echo changes nothing, and a second one ends the process."""

import os
import signal

import pytest

from vlmplan_trainer import stopping
from vlmplan_trainer.stopping import StopRequest, agreed, exit_code


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_is_noted_and_its_echo_changes_nothing(signum):
    before = signal.getsignal(signum)
    with StopRequest() as stop:
        assert agreed(stop.votes()) is None
        signal.raise_signal(signum)
        signal.raise_signal(signal.SIGTERM)
        assert agreed(stop.votes()) == signum
    assert signal.getsignal(signum) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_second_signal_ends_the_process(monkeypatch):
    monkeypatch.setattr(stopping, "ECHO_SECONDS", 0.0)
    child = os.fork()
    if child == 0:
        with StopRequest():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_one_rank_is_enough_and_sigterm_goes_before_ctrl_c():
    assert agreed([1.0, 0.0, 2.0]) == signal.SIGTERM
    assert agreed([0.0, 3.0, 0.0]) == signal.SIGINT
    assert agreed([1.0, 7.0, 0.0]) == signal.SIGTERM
    assert exit_code(signal.SIGINT) == 130


def test_output_that_nobody_reads_counts_as_a_terminal_that_is_gone():
    stop = StopRequest()
    stop.ask()
    assert agreed(stop.votes()) == signal.SIGHUP
