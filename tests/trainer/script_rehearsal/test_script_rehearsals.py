"""Scripts that nobody has prepared: rehearsed through the command line, and really run on CPU ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from beside_real_scripts import CASES, SCRIPTS, compared, prepared_folder

from cli_calls import call
from vlmplan.memory.overhead import HOPPER_CUBLAS_WORKSPACE_BYTES, NUM_CUBLAS_HANDLES

DAILY = ("plain-alone",)
TOLERANCE = 0.01
SWEEP = pytest.mark.sweep


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rehearsed(*words: str, gpu: str, options: Sequence[str] = ()) -> dict[str, Any]:
    done = call("rehearse", "--gpu", gpu, "--json", *options, "--", *words)
    assert done.code == 0, done.err
    return done.document


@pytest.mark.parametrize("name", [one if one in DAILY else pytest.param(one, marks=SWEEP) for one in CASES])
def test_a_rehearsed_script_peaks_as_it_really_does_on_cpu_ranks(name: str):
    lines = compared(CASES[name])
    assert {"forward", "backward", "step"} <= {line.phase for line in lines}
    wrong = [line for line in lines if abs(line.error) > TOLERANCE]
    assert not wrong, wrong


@SWEEP
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


@SWEEP
def test_an_optimizer_that_was_told_nothing_updates_all_weights_together_on_cuda(folder: Path):
    (folder / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(8)]).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 512).cuda()).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    step = next(one for one in rehearsed("python", "train.py", gpu="h100-sxm:1")["phases"] if one["name"] == "step")
    weights, gradients, moments, roots = (8 * 512 * 512 * 4 * count for count in (1, 1, 2, 1))
    workspaces = NUM_CUBLAS_HANDLES * HOPPER_CUBLAS_WORKSPACE_BYTES
    assert step["peak_bytes"] == pytest.approx(workspaces + weights + gradients + moments + roots, rel=0.01)


@pytest.mark.long
@SWEEP
def test_what_decides_unknown_is_said_with_its_line_and_can_be_given():
    words = ("python", str(SCRIPTS / "plain_loop.py"))
    line = 1 + (SCRIPTS / "plain_loop.py").read_text().splitlines().index("    if loss < 0:")
    found = rehearsed(*words, gpu="h100-sxm:1")
    decisions = [one for one in found["unknown_values"] if one["what"] == "decision"]
    assert [(Path(one["file"]).name, one["line"]) for one in decisions] == [("plain_loop.py", line)]
    other = rehearsed(*words, gpu="h100-sxm:1", options=("--assume", f"plain_loop.py:{line}=True"))
    assert other["peak_allocated_bytes"] > found["peak_allocated_bytes"]
    assert not [one for one in other["unknown_values"] if one["what"] == "decision"]


@SWEEP
def test_a_script_that_refuses_its_arguments_is_told_with_its_reason(folder: Path):
    (folder / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = call("rehearse", "--gpu", "h100-sxm:1", "--", "python", "train.py", "--bf16")
    assert done.code == 1
    assert "the script ended itself: 2 (train.py: error: unrecognized arguments: --bf16)" in done.err


@pytest.mark.long
@SWEEP
def test_every_batch_is_of_the_longest_samples_where_that_is_asked_for():
    words = ("python", str(SCRIPTS / "uneven.py"))
    short, long = (
        rehearsed(*words, gpu="h100-sxm:1", options=options)["largest"][0]["num_bytes"]
        for options in ((), ("--longest",))
    )
    samples, tokens, width, element_bytes = 4, 4000, 256, 4
    assert long == samples * tokens * width * element_bytes
    assert short < long // 10


@SWEEP
def test_storages_name_the_lines_of_the_users_script():
    script = SCRIPTS / "uneven.py"
    lines = script.read_text().splitlines()
    made = 1 + next(place for place, line in enumerate(lines) if line.startswith("model ="))
    updated = 1 + lines.index("    optimizer.step()")
    found = rehearsed("python", str(script), gpu="h100-sxm:1")["largest"]
    by_component = {one["component"]: one["maker"] for one in found}
    assert by_component["weights"].endswith(f"uneven.py:{made}")
    assert by_component["optimizer_states"].endswith(f"uneven.py:{updated}")
    assert all("uneven.py:" in one["maker"] for one in found), found


@SWEEP
def test_buckets_of_ddp_are_communication_buffers_and_not_activations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # as some launch scripts have it
    found = rehearsed(
        "torchrun",
        str(SCRIPTS / "own_loop.py"),
        "--engine",
        "ddp",
        "--model",
        str(prepared_folder() / "llama"),
        gpu="h100-sxm:2",
    )
    buckets = [one for one in found["largest"] if one["maker"].startswith("ddp ")]
    assert buckets
    assert {one["component"] for one in buckets} == {"communication_buffers"}


@pytest.mark.long
@SWEEP
def test_a_script_that_measures_the_card_draws_there_and_compiles_is_rehearsed():
    found = rehearsed("python", str(SCRIPTS / "own_ways.py"), gpu="l4:1")
    width, size, element_bytes = 512, 2048, 4
    assert found["largest"][0]["num_bytes"] == size * 4 * width * element_bytes
    assert any("torch.compile is off" in note for note in found["notes"])
