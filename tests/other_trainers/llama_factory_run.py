"""Real runs of LLaMA-Factory on two CPU ranks: each phase planned from its own YAML file, and measured.

    python tests/other_trainers/llama_factory_run.py ENV/bin/python DIR [CASE...]

``ENV`` has ``requirements/llamafactory.txt``. A case is a method and an engine, such as ``lora-2``; all of them where
none is named. Prints a table in Markdown, in MiB; exit code 1 where a phase is off by more than ``TOLERANCE_FRACTION``.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

REENTRANT = "-reentrant"
CASES = ("full-none", "full-2", "full-3", "lora-none", "lora-2", "lora-3", f"lora-3{REENTRANT}")
PHASES = ("init", "forward", "backward", "step")
TOLERANCE_FRACTION = 0.03
MAX_TRIES = 3
NUM_RANKS, NUM_STEPS = 2, 4
WITHOUT_PREFETCH = {
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 1_000,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}
GLOO_PAUSE_SECONDS = 0.05
SETTINGS: dict[str, Any] = {
    "stage": "sft",
    "do_train": True,
    "dataset": "tiny",
    "template": "alpaca",
    "cutoff_len": 64,
    "overwrite_cache": True,
    "preprocessing_num_workers": 1,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": NUM_STEPS,
    "bf16": True,
}


def write(folder: Path) -> None:
    """The model, data of which every sample is cut off, and a file for every case."""
    import yaml

    from vlmplan_trainer.models.tiny import write_tiny_model

    write_tiny_model(folder / "model", "llama", hidden_size=256, num_layers=4)
    samples = [
        {"instruction": f"{n} what is this? " * 40, "input": "", "output": "a thing of sorts " * 40} for n in range(16)
    ]
    (folder / "tiny.json").write_text(json.dumps(samples), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"tiny": {"file_name": "tiny.json"}}), encoding="utf-8")
    batch = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
    rest = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
    for case in CASES:
        method, stage, *kind = case.split("-")
        settings = SETTINGS | {"model_name_or_path": str(folder / "model"), "dataset_dir": str(folder)}
        settings |= {"finetuning_type": method, "output_dir": str(folder / "out" / case)}
        if method == "lora":
            settings |= {"lora_rank": 8, "lora_target": "all"}
        if case == "lora-3":
            settings["use_reentrant_gc"] = False
        if stage != "none":
            zero = {"stage": int(stage), "reduce_bucket_size": 500_000, "overlap_comm": False}
            zero |= WITHOUT_PREFETCH if kind else {}  # under which it shows what reentrant checkpoints keep whole
            section = {"zero_optimization": zero, **batch, **rest}
            (folder / f"ds_{case}.json").write_text(json.dumps(section), encoding="utf-8")
            settings["deepspeed"] = str(folder / f"ds_{case}.json")
        (folder / f"{case}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def measured(python: str, folder: Path, case: str) -> dict[str, int]:
    """The peak of each phase in bytes, of a run in the other environment."""
    result = folder / f"{case}.json"
    shutil.rmtree(folder / "out" / case, ignore_errors=True)  # of an earlier try, beside which it does not train
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = ["-m", "torch.distributed.run", f"--nproc_per_node={NUM_RANKS}", f"--master_port={port}"]
    variables = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    done = subprocess.run(
        [python, *ranks, __file__, "--rank", str(folder / f"{case}.yaml"), str(result)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{case}: LLaMA-Factory ended with {done.returncode}\n{done.stderr[-4000:]}")
    return json.loads(result.read_text(encoding="utf-8"))


def play_torchaudio() -> None:
    """For samples with sound, of which there are none here; none is published for a CPU build of torch 2.13."""
    played = sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    played.__spec__ = ModuleSpec("torchaudio", loader=None)


def train(file: Path, result: Path) -> None:
    """One rank of LLaMA-Factory, followed phase by phase."""
    import torch
    import yaml

    play_torchaudio()
    settings = yaml.safe_load(file.read_text(encoding="utf-8")) | {"use_cpu": True}
    if "deepspeed" in settings:
        import deepspeed

        # On a CPU accelerate starts torch's process group alone.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute to build in a new environment
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    from llamafactory.train.sft import workflow
    from llamafactory.train.tuner import run_exp
    from transformers import TrainerCallback

    from vlmplan_trainer.integrations.trainer_phases import TrainerPhases
    from vlmplan_trainer.measure import Meter

    class PhasesApart(TrainerPhases):
        def switch(self, name: str | None) -> None:
            time.sleep(GLOO_PAUSE_SECONDS)
            super().switch(name)

    phases = PhasesApart(Meter(torch.device("cpu"), num_steps=NUM_STEPS))

    class Follow(TrainerCallback):
        def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            phases.begin_init(model)

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            phases.begin_training(model, optimizer)

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            phases.begin_update()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            phases.end_step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            phases.end()

    load = workflow.load_model

    def followed(*arguments: Any, **named: Any) -> Any:
        with phases.meter.phase("load"):
            model = load(*arguments, **named)
            phases.meter.count(model)
        return model

    workflow.load_model = followed
    run_exp(settings, [Follow()])
    if os.environ["RANK"] == "0":
        peaks = {name: memory.peak_bytes for name, memory in phases.meter.memory.items()}
        result.write_text(json.dumps(peaks), encoding="utf-8")


def planned(file: Path) -> dict[str, int]:
    """The peak of each phase in bytes, from the file that the run reads. With today's DeepSpeed and its transformers
    reentrant checkpoints are of whole calls."""
    import vlmplan

    kind = "reentrant-calls" if file.stem.endswith(REENTRANT) else None
    estimate = vlmplan.estimate(config=file, gpu=f"cpu:{NUM_RANKS}", checkpoint_kind=kind)
    return {phase.name: phase.peak_bytes for phase in estimate.phases}


def off_by(plan: dict[str, int], real: dict[str, int]) -> dict[str, float]:
    """By how much each phase is planned too high (too low where negative), as a fraction of what was measured."""
    return {name: plan[name] / real[name] - 1 for name in ("load", *PHASES)}


def num_beyond(errors: dict[str, float]) -> int:
    return sum(abs(errors[name]) > TOLERANCE_FRACTION for name in PHASES)


def compare(python: str, folder: Path, cases: list[str]) -> int:
    """Print the table; the number of phases beyond their tolerance."""
    from vlmplan.units import MIB

    folder.mkdir(parents=True)
    write(folder)
    print(f"| method and engine | {' | | '.join(('load', *PHASES))} | |\n|---|{'---:|' * 2 * (1 + len(PHASES))}")
    total_beyond = 0
    for case in cases or CASES:
        plan, real = planned(folder / f"{case}.yaml"), measured(python, folder, case)
        for _ in range(MAX_TRIES - 1):
            if not num_beyond(off_by(plan, real)):
                break
            again = measured(python, folder, case)
            real = {name: min(num_bytes, again[name]) for name, num_bytes in real.items()}
        errors = off_by(plan, real)
        total_beyond += num_beyond(errors)
        cells = (f"{real[name] / MIB:.2f} | {error:+.1%}" for name, error in errors.items())
        print(f"| {case} | {' | '.join(cells)} |", flush=True)
    return total_beyond


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        train(Path(sys.argv[2]), Path(sys.argv[3]))
        os._exit(0)  # threads of process groups that fall end the process with an error now and then
    else:
        sys.exit(min(1, compare(sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:])))
