"""Write docs/costs.md, and three lines of README.md, from the measured figures: `python docs/generate_costs.py`.

`python -m benchmarks --save` measures them.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.figures import FILE
from benchmarks.figures import Figures
from benchmarks.figures import Table
from benchmarks.figures import number
from benchmarks.table import medians

PAGE = Path(__file__).with_name("costs.md")
README = PAGE.parents[1] / "README.md"
MODELS = ("resnet50", "vit_b_16", "mobilenet_v3_large")
HEAD = """# What it costs

Measured by `python -m benchmarks --save`, written by `python docs/generate_costs.py`; a test says when it is
out of date. All is CPU time in one thread: medians of interleaved runs, in plain forward passes of the same round;
`benchmarks/figures.csv` has the quartiles. Models are in eval mode with random weights; images are 224 pixels wide,
one in a batch; nothing needs gradients. The package torchlens is measured beside where it is installed.
"""
NOTES = {
    "CPU time": """*recorded*: every operation, with a fingerprint of every activation. *all kept*: and each activation.
*layers_to_save=None*: `log_forward_pass` for the graph alone. *validated*: all five parts; the model runs three times,
each operation again, and once more for each edge. In a small model the cost is Python's, for each operation, and the
plain pass takes next to nothing. *torchlens* is compared with plain passes of its own process, where torch is
wrapped.""",
    "families of timm": """The smallest models of 20 of timm's 98 families, at their usual input size.""",
    "empty tests": """The CPU time of pytest as a whole, imports included. *plain*: with `-p no:lens`; *installed*:
without an option of ours; *validated*: with `--lens-validate`. The first call of a model in a test imports the code
that validates.""",
    "memory": """*tensors*: alive at one time, without the model and its input; the same on any machine. *resident*: the
rise of the resident set in a process's first pass; the allocator keeps what the tensors gave back.""",
}


def main() -> None:
    """Write the page and the lines."""
    figures = Figures.load(FILE)
    PAGE.write_text(page(figures), encoding="utf-8")
    README.write_text(with_lines(README.read_text(encoding="utf-8"), figures), encoding="utf-8")


def page(figures: Figures) -> str:
    """Return the page."""
    parts = [HEAD, f"{figures.environment}.\n"]
    for title, table in figures.tables.items():
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{NOTES[title]}\n\n{medians(title, table)}\n")
    return "\n".join(parts)


def with_lines(readme: str, figures: Figures) -> str:
    """Return the README with the lines about costs replaced."""
    return re.sub(
        r"(?<=<!-- costs -->\n).*?(?=<!-- end of costs -->)", lambda _: lines(figures), readme, flags=re.DOTALL
    )


def lines(figures: Figures) -> str:
    """Return the lines for the README."""
    times, families, empty = (figures.tables[title] for title in ("CPU time", "families of timm", "empty tests"))
    middle = number(families["median"]["validated"].median)
    tests = " or ".join(number(row["validated"].median) for row in empty.values())
    return (
        f"In plain forward passes, recording takes {_models(times, 'recorded')}.\n"
        f"Validating takes {_models(times, 'validated')}, and {middle} for the median of timm's families.\n"
        f"With `--lens-validate` 1,000 empty tests take {tests} times as long: [all figures](docs/costs.md).\n"
    )


def _models(times: Table, column: str) -> str:
    return ", ".join(f"{number(times[name][column].median)} ({name})" for name in MODELS)


if __name__ == "__main__":
    main()
