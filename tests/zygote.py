"""Run nndiff's command line many times, quickly, each time in a fresh process of its own.

The imports are done once; every run is a fork, whose time, memory and output are reported.
Requests are lines of JSON on stdin: {"argv": [...], "out": PATH, "err": PATH}.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module

from nndiff.commands import build_parser, main

# what most runs need; it only saves time, so a name that is gone does no harm
WARM = ("nndiff.comparison", "nndiff.reports.terminal", "nndiff.sources.distributed", "nndiff.sources.nemo")

SECONDS = 60  # a run that takes longer is killed


def child(request: dict[str, object]) -> None:
    """Become one run of the command line, and never return."""
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(str(request[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(4 * SECONDS)
    status = 70
    try:
        status = main([str(each) for each in request["argv"]])  # type: ignore[attr-defined]
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    build_parser()
    for name in WARM:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        _, status, usage = os.wait4(pid, 0)
        answer = {
            "status": os.waitstatus_to_exitcode(status),
            "megabytes": usage.ru_maxrss / 1024,
            "seconds": usage.ru_utime + usage.ru_stime,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
