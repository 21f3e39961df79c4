"""Settings of the CPU last as long as a run and no longer."""

import pytest
import torch

from energylm.training import processes


@pytest.mark.parametrize("works", [True, False])
def test_onednn_is_switched_off_only_where_it_crashes(monkeypatch, capsys, works):
    monkeypatch.setattr(processes, "onednn_bfloat16_works", lambda: works)
    before = torch.backends.mkldnn.enabled
    with pytest.raises(KeyboardInterrupt), processes.sound_bfloat16(needed=True):
        assert torch.backends.mkldnn.enabled == (before and works)
        raise KeyboardInterrupt
    assert torch.backends.mkldnn.enabled == before
    assert ("oneDNN" in capsys.readouterr().err) != works


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt), processes.cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before
