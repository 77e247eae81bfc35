"""ms-swift 4.6.0's own ``swift rlhf`` with ``rlhf_type`` grpo, on the settings of a case of ``trainers.json``, to be
rehearsed where ms-swift and TRL 0.29.1 are installed:

    python ms_swift_grpo_run.py CASE.json prepare
    vlmplan rehearse --gpu a100-sxm4-80gb:2 -- torchrun --nproc_per_node 2 ms_swift_grpo_run.py CASE.json

``CASE.json`` holds the settings, ``model`` a folder with the model's configuration, into which the first command writes
a tokenizer of words and the prompts. These are of 100 words, of which its template chatml makes 105 tokens, and every
answer is of as many tokens as may be: by transformers, whose ends are not met, or by a stand-in for vLLM, which takes
nothing of the GPU.
"""

import json
import sys
import types
from pathlib import Path
from typing import Any

WORDS, PROMPTS = 100, "prompts.jsonl"


def prepare(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ("<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "w", "a")
    words = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    ).save_pretrained(folder)
    line = json.dumps({"messages": [{"role": "user", "content": "w " * WORDS}]})
    (folder / PROMPTS).write_text(f"{line}\n" * 64, encoding="utf-8")


class Engine:
    """What ``RolloutTrainerMixin`` asks of vLLM in its own process."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.max_model_len = None
        self.inner_model = types.SimpleNamespace(load_weights=lambda weights: [None for _ in weights])
        self.inner_model_executor = types.SimpleNamespace(is_sleeping=False)
        nothing = lambda *_, **__: None  # noqa: E731
        names = ("reset_mm_cache", "reset_prefix_cache", "reset_encoder_cache", "sleep", "wake_up")
        self.engine = types.SimpleNamespace(**dict.fromkeys(names, nothing), model_config=None)

    def infer(self, requests: list[Any], *_: Any, **__: Any) -> list[Any]:
        from swift.infer_engine.protocol import (
            ChatCompletionResponse,
            ChatCompletionResponseChoice,
            ChatMessage,
            RolloutOutput,
            UsageInfo,
        )

        def answered() -> Any:
            message = ChatMessage(role="assistant", content="w " * self.answer)
            choice = ChatCompletionResponseChoice(
                index=0, message=message, finish_reason="length", token_ids=[4] * self.answer
            )
            usage = UsageInfo(prompt_tokens=0, completion_tokens=self.answer, total_tokens=self.answer)
            return RolloutOutput(response=ChatCompletionResponse(model="", choices=[choice], usage=usage))

        return [answered() for _ in requests]


def put_engine(answer: int) -> None:
    """Let the stand-in be vLLM."""
    from swift.rlhf_trainers import rollout_mixin

    rollout_mixin.is_vllm_available = lambda: True
    rollout_mixin.check_vllm_version_ge = lambda _: False
    for name in ("patch_vllm_moe_model_weight_loader", "finish_vllm_weight_reload"):
        setattr(rollout_mixin, name, lambda *_, **__: None)
    rollout_mixin.RolloutTrainerMixin._prepare_vllm_engine = lambda _: Engine(answer)


def main(settings: dict[str, Any]) -> None:
    from swift.rewards import ORM, orms

    class Place(ORM):
        def __call__(self, completions: list[str], **_: Any) -> list[float]:
            return [float(place) for place in range(len(completions))]

    orms["place"] = Place
    if settings.get("use_vllm"):
        put_engine(settings["max_completion_length"])
    settings = {
        **settings,
        "dataset": str(Path(settings["model"]) / PROMPTS),
        "reward_funcs": "place",
        "template": "chatml",
    }
    words: list[str] = []
    for key, value in settings.items():
        words += [f"--{key}", str(value).lower() if isinstance(value, bool) else str(value)]
    from swift.pipelines import rlhf_main

    rlhf_main(words)


if __name__ == "__main__":
    case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    prepare(Path(case["model"])) if sys.argv[2:] else main(case)
