"""One run of Hugging Face's Trainer on CPU ranks, and the bytes that its folder has whenever checkpoints come and go.

python -m torch.distributed.run --nproc_per_node=2 tests/trainer/integrations/saved_run.py JOB

``JOB`` is JSON: folder of the model, output, result, method (full, lora), stage (null for DDP, 0 to 3), ``arguments``
of TrainingArguments, and ``gathers`` of a run under ZeRO-3.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from hugging_face_run import Tokens


def num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def deepspeed_section(job: dict[str, Any]) -> dict[str, Any] | None:
    if job["stage"] is None:
        return None
    import deepspeed

    # gloo alone: a build of this kernel that is broken off leaves a lock that every later run waits for
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    zero = {"stage": job["stage"], "reduce_bucket_size": 500_000, "overlap_comm": False}
    zero |= {"stage3_gather_16bit_weights_on_model_save": job["gathers"]} if job["stage"] == 3 else {}
    batch = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
    rest = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
    return {"zero_optimization": zero, **batch, **rest}


def main(job: dict[str, Any]) -> None:
    import transformers.trainer
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    folder, sizes = Path(job["output"]), []
    rotate = transformers.trainer.rotate_checkpoints

    def rotate_and_weigh(**given: Any) -> None:
        sizes.append(num_bytes(folder))
        rotate(**given)
        sizes.append(num_bytes(folder))

    transformers.trainer.rotate_checkpoints = rotate_and_weigh
    settings = TrainingArguments(
        job["output"],
        deepspeed=deepspeed_section(job),
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=2,
        optim="adamw_torch_fused",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        **job["arguments"],
    )
    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=torch.float32)
    model.config.use_cache = False
    if job["method"] == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    trainer = Trainer(model=model, args=settings, train_dataset=Tokens())
    trainer.train()
    trainer.save_model()
    if os.environ.get("RANK", "0") == "0":
        newest = max(folder.glob("checkpoint-*"), key=lambda place: int(place.name.rpartition("-")[2]))
        sizes.append(num_bytes(folder))
        result = {"peak": max(sizes), "end": sizes[-1], "checkpoint": num_bytes(newest)}
        Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    from vlmplan_trainer.starting import leave_ranks

    main(json.loads(sys.argv[1]))
    leave_ranks()
