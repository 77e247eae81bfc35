"""Tasks: a plan run by TRL's trainers, with this project's models, data, optimizers, checkpoints and reports

arguments    a plan as the keyword arguments of ``DPOConfig``, ``RewardConfig`` and ``GRPOConfig``
samples      what is trained on, as the rows that TRL's trainers read
rewards      reward functions from the user's own file
phases       where the phases of a plan begin and end
classes      TRL's configuration and trainer of a task
planned      what a plan decides of a trainer of TRL's: optimizer, schedule, checkpoints
callback     what happens at each step: metrics, saves, signals
run          a whole run

TRL is the extra ``vlmplan[rl]``; only ``classes`` imports it.
"""
