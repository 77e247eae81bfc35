"""Scripts that nobody has prepared: rehearsed through the command line, and really run on CPU ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call

SCRIPTS = Path(__file__).parent / "scripts"
REAL = Path(__file__).parent / "real_script.py"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
}
ZERO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}
BUCKETS = {"allgather_bucket_size": 100_000, "reduce_bucket_size": 100_000}
pytestmark = pytest.mark.sweep


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
    for stage in (1, 2, 3):
        config = ZERO | {"zero_optimization": {"stage": stage, **BUCKETS}}
        (tmp_path / f"zero{stage}.json").write_text(json.dumps(config))
    return tmp_path


def rehearsed(*words: str, gpu: str, options: Sequence[str] = ()) -> dict[str, Any]:
    done = call("rehearse", "--gpu", gpu, "--json", *options, "--", *words)
    assert done.code == 0, done.err
    return done.document


def really_run(folder: Path, script: str, *arguments: str, num_ranks: int) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_ranks)]
    start = command if num_ranks > 1 else [sys.executable]
    done = subprocess.run(
        [*start, str(REAL), "real.json", script, *arguments],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "real.json").read_text())


@pytest.mark.parametrize(
    ("script", "arguments", "num_ranks"),
    [
        ("plain_loop.py", (), 1),
        ("hugging_face.py", (), 1),
        ("hugging_face.py", ("--accum", "2", "--checkpointing"), 1),
    ],
)
def test_a_rehearsed_script_peaks_as_it_really_does_on_cpu_ranks(
    folder: Path, script: str, arguments: tuple[str, ...], num_ranks: int
):
    words = [str(SCRIPTS / script), *(("--model", "llama") if script == "hugging_face.py" else ()), *arguments]
    found = rehearsed("torchrun", *words, gpu=f"cpu:{num_ranks}")
    real = really_run(folder, words[0], *words[1:], num_ranks=num_ranks)
    phases = {phase["name"]: phase for phase in found["phases"]}
    assert set(real) - {"save"} <= set(phases)
    for name in ("forward", "backward", "step"):
        steps = phases[name], phases[name]["first_step"]
        peak = max(step["peak_bytes"] for step in steps)
        assert peak == pytest.approx(real[name]["peak_bytes"], rel=0.01), name


def test_a_script_on_cuda_is_rehearsed_without_a_card_or_anything_left_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRIES_EVERYTHING", "1")
    before = sorted(folder.rglob("*"))
    found = rehearsed("python", str(SCRIPTS / "plain_loop.py"), gpu="h100-sxm:1")
    assert sorted(folder.rglob("*")) == before
    weights = 4 * (1024 * 2048 + 2048 + 2048 * 1024 + 1024)
    assert found["phases"][0]["resident_bytes"] == weights
    step = next(phase for phase in found["phases"] if phase["name"] == "step")
    assert step["components"]["optimizer_states"] == pytest.approx(2 * weights, rel=0.001)
    assert found["checkpoint_bytes"] == weights
    notes = " ".join(found["notes"])
    assert "the network is off" in notes
    assert "temporary folder" in notes


def test_what_decides_unknown_is_said_with_its_line_and_can_be_given():
    words = ("python", str(SCRIPTS / "plain_loop.py"))
    line = 1 + (SCRIPTS / "plain_loop.py").read_text().splitlines().index("    if loss.isnan():")
    found = rehearsed(*words, gpu="h100-sxm:1")
    decisions = [one for one in found["unknown_values"] if one["what"] == "decision"]
    assert [(Path(one["file"]).name, one["line"]) for one in decisions] == [("plain_loop.py", line)]
    other = rehearsed(*words, gpu="h100-sxm:1", options=("--assume", f"plain_loop.py:{line}=True"))
    assert other["peak_allocated_bytes"] > found["peak_allocated_bytes"]
    assert not [one for one in other["unknown_values"] if one["what"] == "decision"]
