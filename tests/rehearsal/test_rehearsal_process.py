"""The process that rehearses: what it is asked, what it says meanwhile, and one sentence for every way it can fail.

A few lines of Python stand for the trainer; ``test_real_rehearsals`` asks the real one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from recorded_rehearsal import ANSWER, planned, recorded

from vlmplan.errors import InputError, MissingPackageError, UnavailableError, VlmplanError
from vlmplan.files.json_reader import JsonDict
from vlmplan.models import find_model
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.rehearsal import process, rehearse, together
from vlmplan.rehearsal.process import LongRehearsalError
from vlmplan.rehearsal.request import num_phases, request_json
from vlmplan.rehearsal.result import Rehearsed
from vlmplan.rehearsal.together import Asked
from vlmplan.sample_images import sample_image
from vlmplan.workload import Workload

READ = "import json, sys, os; request = json.load(sys.stdin)\n"
ANSWERS = READ + f"sys.stderr.write('PHASE load\\nnoise\\nPHASE init\\n'); print(open({str(ANSWER)!r}).read())"

Pretend = Callable[[str], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Lets a script stand for the trainer."""
    monkeypatch.setattr(process, "installed_version", lambda name: "1")
    return lambda script: monkeypatch.setattr(process, "COMMAND", ("-c", script))


def failure(kind: type[VlmplanError] = UnavailableError) -> str:
    plan, estimate = planned()
    with pytest.raises(kind) as error:
        rehearse(plan, estimate)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_answer_is_read_and_every_phase_is_said_once_in_order(pretend: Pretend):
    pretend(ANSWERS)
    said: list[str] = []
    plan, estimate = planned()
    assert rehearse(plan, estimate, say=said.append).rehearsed == recorded()
    assert said == ["load", "init"]


def test_the_trainer_gets_plan_samples_rank_and_card(pretend: Pretend, tmp_path: Path):
    seen = tmp_path / "request.json"
    pretend(READ + f"json.dump(request, open({str(seen)!r}, 'w')); print(open({str(ANSWER)!r}).read())")
    plan, estimate = planned()
    rehearse(plan, estimate, rank=1, num_steps=4)
    request = json.loads(seen.read_text())
    assert request["plan"] == json.loads(json.dumps(plan.as_json()))
    assert request["samples"] == {
        "micro_batch": 2,
        "num_tokens": 512,
        "target_tokens": 0,
        "images_per_sample": 0,
        "image": None,
        "sequences": None,
        "width": plan.workload.image_width,
        "height": plan.workload.image_height,
        "audios_per_sample": 0,
        "audio": None,
    }
    assert (request["rank"], request["num_steps"], request["compute_capability"]) == (1, 4, [8, 0])
    assert request["total_bytes"] == estimate.cluster.node.gpu.usable_bytes
    assert request["overhead_bytes"] == estimate.device.overhead_bytes > 0


def test_steps_are_the_trainers_own_unless_given():
    plan, estimate = planned()
    assert "num_steps" not in request_json(plan, estimate, rank=0)


def test_image_of_the_request_is_that_of_the_estimate():
    _, estimate = planned()
    sees = Workload(
        model=find_model("qwen2-vl-2b"), seq_len=512, images_per_sample=1, image_width=224, image_height=448
    )
    plan = replace(plan_from_estimate(estimate), workload=sees)
    samples = request_json(plan, replace(estimate, workload=sees), rank=0)["samples"]
    image = sample_image(sees)
    assert image is not None
    assert samples["image"] == asdict(image)
    assert (samples["width"], samples["height"]) == (224, 448)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_that_is_planned_is_rehearsed(pretend: Pretend, tmp_path: Path, rank: int):
    seen = tmp_path / "request.json"
    pretend(READ + f"json.dump(request, open({str(seen)!r}, 'w')); print(open({str(ANSWER)!r}).read())")
    plan, estimate = planned()
    rehearse(plan, replace(estimate, timeline=estimate.timeline._replace(rank=rank)))
    assert json.loads(seen.read_text())["rank"] == rank


@pytest.mark.parametrize(("rank", "allowed"), [(-1, "0 to 1"), (2, "0 to 1")])
def test_a_rank_that_the_plan_has_not_is_refused(rank: int, allowed: str):
    plan, estimate = planned()
    with pytest.raises(InputError, match=f"--rank is {rank}.* has ranks {allowed}"):
        rehearse(plan, estimate, rank=rank)


def test_two_steps_are_too_few():
    plan, estimate = planned()
    with pytest.raises(InputError, match="--steps is 2; 3 or more"):
        rehearse(plan, estimate, num_steps=2)


def test_phases_to_come_are_counted():
    plan, _ = planned()  # two micro batches a step: forward, backward, forward, backward, step
    assert num_phases(plan, 4) == len(("load", "init", "save")) + 4 * 5
    evaluated, _ = planned(zero_stage=3, eval_batch=1)  # with a further step, and another evaluation behind that
    assert num_phases(evaluated, 4) == len(("load", "init", "save", *["evaluation"] * 2)) + 5 * 5
    begins, _ = planned(zero_stage=3, eval_batch=1, eval_on_start=True)
    assert num_phases(begins, 4) == num_phases(evaluated, 4) + 1


def test_what_is_not_installed_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "installed_version", lambda name: None if name in ("torch", "deepspeed") else "1")
    sentence = failure(MissingPackageError)
    assert "torch, deepspeed, not installed here" in sentence
    assert 'pip install "vlmplan[train]"' in sentence


def test_what_cannot_be_rehearsed_is_said_as_the_trainer_says_it(pretend: Pretend):
    pretend(READ + "print(json.dumps({'error': 'no such thing'}))")
    assert failure(InputError) == "this plan cannot be rehearsed: no such thing"


def test_a_rehearsal_that_takes_too_many_operations_is_an_error_of_its_own(pretend: Pretend):
    pretend(READ + "print(json.dumps({'is_too_long': True} if request['most_operations'] == 7 else {}))")
    plan, estimate = planned()
    request = request_json(plan, estimate, rank=0) | {"most_operations": 7}
    with pytest.raises(process.LongRehearsalError, match="more than 7 operations"):
        process.run_rehearsal(request, plan, say=print)


def test_a_traceback_becomes_its_last_line_and_the_phase(pretend: Pretend):
    pretend(READ + "print('PHASE backward of step 1', file=sys.stderr)\ndef f(): raise RuntimeError('no kernel')\nf()")
    assert failure() == "the rehearsal ended in backward of step 1: RuntimeError: no kernel"


def test_an_error_without_words_says_where_it_was_raised(pretend: Pretend):
    inside = 'File "/a/lib/python3.11/site-packages/deepspeed/runtime/zero/utils.py", line 218, in defragment'
    lines = (f"[rank0]:   {inside}", "[rank0]:     assert False", "[rank0]: AssertionError")
    pretend(READ + f"print({chr(10).join(lines)!r}, file=sys.stderr); os._exit(1)")
    assert failure().endswith(": AssertionError in deepspeed/runtime/zero/utils.py, line 218")


def test_a_process_that_the_system_kills_is_said_to_be_short_of_memory(pretend: Pretend):
    pretend(READ + "os.kill(os.getpid(), 9)")
    assert "memory runs out" in failure()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("os._exit(3)", "its exit code is 3"),
        ("os.abort()", "it got signal 6"),
        ("print('terminate called', file=sys.stderr); os.abort()", "terminate called"),
        ("pass", "its exit code is 0"),
    ],
)
def test_a_silent_end_says_how_it_came(pretend: Pretend, script: str, said: str):
    pretend(READ + script)
    assert failure() == f"the rehearsal ended before it began: {said}"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("nonsense", "the rehearsal's answer is not JSON"),
        ("[]", "the rehearsal's answer holds []"),
        ("{}", "the rehearsal's answer: schema is missing"),
        ('{"schema": "vlmplan.rehearsed/2"}', "vlmplan.rehearsed/1 is needed"),
    ],
)
def test_an_answer_of_another_kind_is_refused(pretend: Pretend, printed: str, said: str):
    pretend(READ + f"print({printed!r})")
    assert said in failure(InputError)


def test_a_process_that_does_not_read_its_request_is_no_traceback(pretend: Pretend):
    pretend("import sys; sys.stdin.close(); sys.exit(2)")
    assert "its exit code is 2" in failure()


def test_an_interpreter_that_is_gone_is_said(pretend: Pretend, monkeypatch: pytest.MonkeyPatch):
    pretend(ANSWERS)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert failure() == "/nowhere/python cannot be started: No such file or directory"


def test_interrupting_ends_the_process(pretend: Pretend, tmp_path: Path):
    started = tmp_path / "pid"
    pretend(READ + f"open({str(started)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)")

    def interrupt() -> None:
        while not (started.exists() and started.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    plan, estimate = planned()
    with pytest.raises(KeyboardInterrupt):
        rehearse(plan, estimate)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_signal_that_ends_vlmplan_ends_the_rehearsal(tmp_path: Path):
    started = tmp_path / "pid"
    sleeper = READ + f"open({str(started)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)"
    script = (
        f"from vlmplan.rehearsal.process import answer_of; import sys; answer_of([sys.executable, '-c', {sleeper!r}]"
    )
    caller = subprocess.Popen([sys.executable, "-c", f"{script}, '{{}}', print)"])
    while not (started.exists() and started.read_text()):
        assert caller.poll() is None
        time.sleep(0.01)
    caller.terminate()
    assert caller.wait() == -signal.SIGTERM
    for _ in range(500):  # whoever adopts it has to notice
        if not is_running(int(started.read_text())):
            return
        time.sleep(0.01)
    raise AssertionError("the rehearsal goes on")


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_no_module_of_the_working_directory_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "random.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    assert process.answer_of([sys.executable, "-c", "import random; print('{}')"], "", print) == {}


ANSWERS_TOGETHER = (
    READ
    + f"answer = json.load(open({str(ANSWER)!r}))\n"
    + "one = lambda r: {'is_too_long': True} if 'most_operations' in r else None if r['rank'] else answer\n"
    + "asked = request.get('requests')\n"
    + "print(json.dumps(answer if asked is None else {'answers': [one(r) for r in asked]}))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="nothing forks elsewhere")
def test_several_are_asked_at_once_and_what_had_no_answer_again_by_itself(pretend: Pretend, monkeypatch):
    pretend(ANSWERS_TOGETHER)
    plan, estimate = planned()
    request = request_json(plan, estimate, rank=0)
    run_alone: list[JsonDict] = []
    alone = together.run_rehearsal

    def noted(request: JsonDict, plan: Plan, *, say: Callable[[str], None]) -> Rehearsed:
        run_alone.append(request)
        return alone(request, plan, say=say)

    monkeypatch.setattr(together, "COMMAND", process.COMMAND)
    monkeypatch.setattr(together, "run_rehearsal", noted)
    requests = [request, request | {"most_operations": 7}, request | {"rank": 1}]
    first, long, died = together.run_together([Asked(one, plan) for one in requests], lambda text: None)
    assert first == recorded() == died
    assert run_alone == [requests[2]]
    assert isinstance(long, LongRehearsalError)
    assert "more than 7 operations" in str(long)
