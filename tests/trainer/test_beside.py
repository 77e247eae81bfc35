"""The comparison with other trainers runs: the same work in each, and a line for every peer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

BESIDE = Path(__file__).parent / "beside.py"


@pytest.mark.sweep
@pytest.mark.long
def test_every_peer_has_its_ratios_or_is_said_to_be_missing():
    words = [sys.executable, str(BESIDE), "--pairs", "2", "--steps", "8", "--engines", "plain"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    _, hugging_face, trl = done.stdout.splitlines()
    ratios = re.search(r"processor seconds ratio (\S+) \((\S+) (\S+)\)$", hugging_face)
    assert ratios is not None, done.stdout
    assert all(float(ratio) > 0.4 for ratio in ratios.groups())  # far from what noise does to processor seconds
    assert trl.startswith("TRL SFTTrainer")
