"""A training that is killed at random points loses no finished step, and goes on as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainings import assert_same_runs, train

from nndiff.runs.reader import open_run

STEPS = 200
KILLS = 20
# The trainer forks a training for every word it is sent: torch is imported once, not twenty times. A training goes on
# from its last checkpoint, which is older than its last step, and says of every step when it is finished.
TRAINER = """
import os, sys, signal
sys.path.insert(0, sys.argv[2])
import torch
from trainings import *

torch.set_num_threads(1)
path, checkpoint = Path(sys.argv[1]) / "run", Path(sys.argv[1]) / "checkpoint.pt"
STEPS = int(sys.argv[3])


def go_on():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = 0
    if checkpoint.exists():
        first, weights, state = torch.load(checkpoint)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)

    def report(number, model, optimizer):
        os.write(1, b"step %d\\n" % number)
        if number % 5 == 4:
            torch.save((number + 1, model.state_dict(), optimizer.state_dict()), str(checkpoint) + ".part")
            os.replace(str(checkpoint) + ".part", checkpoint)

    train(path, range(first, STEPS), model, optimizer, report, every=2, keep="full")


model = make_model()
train_step(model, torch.optim.AdamW(model.parameters()), 0)  # imports what torch imports late
for word in sys.stdin:
    pid = os.fork()
    if pid == 0:
        go_on()
        os._exit(0)
    os.write(1, b"pid %d\\n" % pid)
    os.waitpid(pid, 0)
    os.write(1, b"gone\\n")
"""


def test_no_kill_loses_a_finished_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINER, str(tmp_path), str(Path(__file__).parent), str(STEPS)]
    dice = random.Random(0)
    finished: set[int] = set()
    kills = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        while len(finished) < STEPS or kills < KILLS:
            trainer.stdin.write("go\n")
            pid, was_killed = -1, False
            wanted = dice.randint(0, 12)  # steps until the kill
            for line in trainer.stdout:
                word, *number = line.split()
                if word == "gone":
                    break
                if word == "pid":
                    pid = int(number[0])
                else:
                    finished.add(int(number[0]))
                    wanted -= 1
                if wanted <= 0 and pid > 0 and kills < KILLS and not was_killed:
                    time.sleep(dice.random() * 0.01)  # into the middle of whatever it does next
                    os.kill(pid, signal.SIGKILL)
                    kills, was_killed = kills + 1, True
            else:
                raise AssertionError("the trainer is gone")
            assert was_killed or len(finished) == STEPS, "a training failed by itself"
            run = open_run(tmp_path / "run") if finished else None
            if run is not None:
                assert {step.number for step in run.steps} >= finished
                assert len({(step.epoch, step.batch) for step in run.steps}) == len(run.steps)
        trainer.stdin.close()
    assert kills == KILLS
    train(tmp_path / "whole", range(STEPS), every=2, keep="full")
    assert_same_runs(open_run(tmp_path / "whole"), open_run(tmp_path / "run"))
