"""Run nndiff's command line many times, quickly, each time in a fresh process of its own.

The imports are done once (the words on the command line name them); every run is a fork. Requests are lines of JSON on
stdin: {"argv": [...], "env": {...}, "cwd": PATH}. Answers are lines of JSON on stdout.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from importlib import import_module
from typing import Any

from nndiff.commands import build_parser, main

SECONDS = 60  # a run that takes longer is killed


def become_command(request: dict[str, Any], outputs: list[int]) -> None:
    """Become one run of the command line, and never return."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, pipe in enumerate(outputs, 1):
        os.dup2(pipe, number)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(4 * SECONDS)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]  # as `python -m nndiff` has it
    sys.argv = ["nndiff", *request["argv"]]
    status = 70
    try:
        status = main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def read_pipes(pipes: list[int]) -> list[str]:
    """Return all that is written to some pipes, until the last writer is gone."""
    written = dict.fromkeys(pipes, b"")
    is_open = set(pipes)
    while is_open:
        for pipe in select.select(list(is_open), [], [])[0]:
            chunk = os.read(pipe, 1 << 16)
            written[pipe] += chunk
            if not chunk:
                is_open.remove(pipe)
                os.close(pipe)
    return [written[pipe].decode("utf-8", "surrogateescape") for pipe in pipes]


def serve() -> None:
    build_parser()
    for name in sys.argv[1:]:
        import_module(name)
    for line in sys.stdin:
        ends = [os.pipe() for _ in range(2)]  # no files: a run may limit the size of those
        pid = os.fork()
        if pid == 0:
            become_command(json.loads(line), [write_end for _, write_end in ends])
        for _, write_end in ends:
            os.close(write_end)
        out, err = read_pipes([read_end for read_end, _ in ends])
        _, status, usage = os.wait4(pid, 0)
        answer = {
            "returncode": os.waitstatus_to_exitcode(status),
            "stdout": out,
            "stderr": err,
            "megabytes": usage.ru_maxrss / 1024,
            "seconds": usage.ru_utime + usage.ru_stime,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
