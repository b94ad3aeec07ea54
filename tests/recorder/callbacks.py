"""Run in the recorder's process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def append(name, step, values):
    with Path("seen.txt").open("a", encoding="utf-8") as file:
        print(name, step, *values.reshape(-1)[:3].tolist(), file=file)


def append_at_a_sign(name, step, values):
    """Take the first frame, and wait with all others until there is a file."""
    append(name, step, values)
    while not Path("go").exists():
        time.sleep(0.005)


def ignore(name, step, values):
    pass


def hang(name, step, values):
    Path("hanging.txt").touch()
    time.sleep(600)


def fail(name, step, values):
    if step >= 3:
        raise ValueError(f"cannot bear {name}")


def fail_after_long_talk(name, step, values):
    sys.stdout.write("chatter\n" * 100_000)
    raise ValueError("enough")


def die(name, step, values):
    if step >= 3:
        os._exit(7)


class Summing:
    """Keeps a sum over all frames."""

    def __init__(self):
        self.total = 0.0

    def __call__(self, name, step, values):
        self.total += float(values.sum())

    def close(self):
        Path("total.txt").write_text(str(self.total), encoding="utf-8")


def note_modules(name, step, values):
    tops = {module.partition(".")[0] for module in sys.modules}
    Path("modules.txt").write_text(" ".join(sorted(tops)), encoding="utf-8")
