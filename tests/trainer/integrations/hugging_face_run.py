"""One run of Hugging Face's Trainer on CPU ranks with ``PlanCallback``: its figures as a line of JSON.

PYTHONPATH=tests/trainer python -m torch.distributed.run --nproc_per_node=2
    tests/trainer/integrations/hugging_face_run.py JOB

``JOB`` is JSON: folder, method (full, lora), stage (null for DDP, 2, 3), options of the callback, and ``evaluation``:
after how many batches what it keeps of every sample, its logits, moves to the host, null for the end.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch

SEQ_LEN, MICRO_BATCH, GRAD_ACCUM, NUM_STEPS = 64, 2, 2, 4
NUM_EVALUATED = 40


class Tokens(torch.utils.data.Dataset):
    """Tokens drawn once, all of one length."""

    def __init__(self, num_samples: int = 16) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.ids = torch.randint(20, 200, (num_samples, SEQ_LEN), generator=drawn)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def arguments(job: dict[str, Any]) -> Any:
    from transformers import TrainingArguments

    section = None
    if job["stage"] is not None:
        import deepspeed
        from gloo_messages import let_go_of_messages

        # On a CPU accelerate starts torch's process group alone.
        # gloo alone: a build of this kernel that is broken off leaves a lock that every later run waits for
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        let_go_of_messages()
        zero = {"stage": job["stage"], "reduce_bucket_size": 500_000, "overlap_comm": False}
        # Sizes by the model's width; DeepSpeed's own are larger than this model, which it then gathers at once.
        zero |= dict.fromkeys(("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto")
        batch = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
        rest = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
        section = {"zero_optimization": zero, **batch, **rest}
    evaluation: dict[str, Any] = {}
    if "evaluation" in job:
        evaluation = {"eval_strategy": "steps", "eval_steps": NUM_STEPS, "eval_accumulation_steps": job["evaluation"]}
    return TrainingArguments(
        job["output"],
        deepspeed=section,
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GRAD_ACCUM,
        max_steps=NUM_STEPS,
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        **evaluation,
    )


def evaluating(job: dict[str, Any]) -> dict[str, Any]:
    """What a Trainer needs to evaluate and to keep all logits for it."""
    if "evaluation" not in job:
        return {}
    return {
        "eval_dataset": Tokens(NUM_EVALUATED),
        "compute_metrics": lambda prediction: {"rows": float(len(prediction.predictions))},
    }


def main(job: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, Trainer

    from vlmplan.errors import VlmplanError
    from vlmplan_trainer.integrations.transformers import PlanCallback

    settings = arguments(job)  # before the model, which ZeRO-3 makes in shards
    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=torch.float32)
    model.config.use_cache = False
    if job["method"] == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    callback = PlanCallback(**job.get("options", {}))
    result: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            more = evaluating(job)
            Trainer(model=model, args=settings, train_dataset=Tokens(), callbacks=[callback], **more).train()
        except VlmplanError as error:
            result["stopped"] = str(error)
    if os.environ.get("RANK", "0") == "0":
        result["lines"] = [line.as_json() for line in callback.lines]
        result["why_not"] = callback.why_not
        result["warned"] = [str(one.message) for one in warned if "tokens need" in str(one.message)]
        Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    from vlmplan_trainer.starting import leave_ranks

    main(json.loads(sys.argv[1]))
    leave_ranks()
