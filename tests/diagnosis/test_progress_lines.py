"""How far a run was is read off the bars and lines that trainers print."""

import pytest

from vlmplan.diagnosis.progress import progress_before


def progress(text: str, *, is_in_evaluation: bool = False):
    return progress_before(text, len(text), is_in_evaluation=is_in_evaluation)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (" 15%|█▍        | 129/882 [40:17<3:41:05, 17.62s/it]Traceback", (129, 882)),
        ("Epoch 0:   3%|▎| 129/4000 [00:41<20:29, 3.1it/s]", (129, 4000)),
        ("{'loss': 1.2, 'epoch': 0.11, 'global_step/max_steps': '5/45'}\n", (5, 45)),
        (
            "Train:  13%|██ | 5/45 [01:00<1:00]\n{'global_step/max_steps': '5/45'}\nTrain: 13%|██ | 6/45 [01:13<0]",
            (6, 45),
        ),
        ("step 3/8  loss 0.5  done\n", (3, 8)),
        ("  0%|          | 0/30 [00:00<?, ?it/s]Traceback", (0, 30)),
    ],
)
def test_steps_done_are_those_that_were_printed_last(text: str, steps: tuple[int, int]):
    found = progress(text)
    assert (found.steps_done, found.num_steps) == steps


def test_bars_of_loading_and_of_samples_are_no_steps():
    assert progress("Loading checkpoint shards:  62%|██████▎   | 5/8 [00:06<00:03]").of == "loading"
    assert progress("Running tokenizer on dataset:  62%|██| 500/800 [00:06<00:03]").of == "preparing"
    assert progress("Loading checkpoint shards: 62%|██| 5/8 [00:06<0]").steps_done is None


def test_the_bar_of_an_evaluation_is_not_that_of_training():
    text = " 11%|█ | 100/882 [40:17<3:41, 17s/it]\n 30%|███ | 3/10 [00:02<00:05]"
    assert progress(text, is_in_evaluation=True).steps_done == 100
    assert progress(text).steps_done == 3


def test_the_first_two_steps_are_not_late():
    assert [progress(f" 1%|| {done}/882 [0:01<0]").is_late for done in (0, 1, 2, 129)] == [False, False, True, True]


def test_the_epoch_is_the_trainers():
    assert progress("{'loss': 0.34, 'grad_norm': 0.1, 'epoch': 0.1276}\n").epoch == 0.1276
    assert progress("{'loss': '0.34', 'epoch': '0.1286'}\n").epoch == 0.1286
