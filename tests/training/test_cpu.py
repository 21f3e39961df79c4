"""Settings of the CPU last as long as a run and no longer."""

import pytest
import torch

from energylm.training import processes


@pytest.mark.parametrize("works", [True, False])
def test_onednn_is_switched_off_only_where_it_crashes(monkeypatch, capsys, works):
    monkeypatch.setattr(processes, "_onednn_bfloat16_works", lambda: works)
    before = torch.backends.mkldnn.enabled
    with pytest.raises(KeyboardInterrupt), processes.sound_bfloat16(needed=True):
        assert torch.backends.mkldnn.enabled == (before and works)
        raise KeyboardInterrupt
    assert torch.backends.mkldnn.enabled == before
    assert ("oneDNN" in capsys.readouterr().err) != works


def test_a_trial_process_that_dies_is_noticed(monkeypatch):
    for probe, expected in (("pass", True), ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False)):
        processes._onednn_bfloat16_works.cache_clear()
        monkeypatch.setattr(processes, "_PROBE", probe)
        assert processes._onednn_bfloat16_works() is expected
    processes._onednn_bfloat16_works.cache_clear()


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt), processes.cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before
