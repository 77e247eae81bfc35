"""Imports of everything that a run or a rehearsal imports, so that processes forked from one that has it need not."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"  # what DeepSpeed finds by itself when it is imported

import bitsandbytes.optim  # noqa: F401
import deepspeed.runtime.zero.stage3
import deepspeed.runtime.zero.stage_1_and_2  # noqa: F401
import peft  # noqa: F401
import sympy  # noqa: F401
import torch.testing._internal.distributed.fake_pg
import torch.utils._sympy.functions  # noqa: F401
import transformers.integrations.deepspeed
import transformers.models.auto.modeling_auto
import transformers.models.llama.modeling_llama
import transformers.models.qwen2_vl.modeling_qwen2_vl  # noqa: F401

import vlmplan_trainer.rehearse.run
import vlmplan_trainer.run  # noqa: F401
