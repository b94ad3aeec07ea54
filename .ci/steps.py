"""Runs the shell steps of an action, of a GitHub workflow's job or of a GitLab job as they stand in their file.

    python .ci/steps.py action.yml --workspace DIR --temp TEMP --set inputs.arguments='--lens-validate'
    python .ci/steps.py docs/ci.md:versions.yml --job matrix --workspace DIR --temp TEMP
    python .ci/steps.py docs/ci.md:.gitlab-ci.yml --job models --workspace DIR --temp TEMP --env TORCH=2.14.1

The runner's variables (`GITHUB_OUTPUT`, `GITHUB_STEP_SUMMARY`, `RUNNER_TEMP`, `CI_PROJECT_DIR` …) are set; what a step
writes to `GITHUB_OUTPUT` is an output for later ones. Steps that use another action are skipped. Ends with the exit
status of the first step that failed; later steps then run only if they are to run always, as a runner does it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
_ALWAYS = "always()"


@dataclass
class Runner:
    """Runs steps, and knows what expressions mean."""

    workspace: Path
    environment: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    status: int = 0

    def expand(self, text: Any) -> str:
        """Return a text with the values of its expressions; an unknown one is an error, not empty."""
        return _EXPRESSION.sub(lambda found: self.values[found[1]], str(text))

    def run(self, step: dict[str, Any]) -> None:
        """Run a step of a workflow or action if it is one for the shell, and may run."""
        condition = step.get("if", "")
        if "run" not in step or (self.status and condition != _ALWAYS):
            return
        if condition not in ("", _ALWAYS):
            raise SystemExit(f"expected no condition but {_ALWAYS} on a step for the shell, got {condition!r}")
        output = Path(self.environment["GITHUB_OUTPUT"])
        output.write_text("", encoding="utf-8")
        own = {name: self.expand(value) for name, value in step.get("env", {}).items()}
        folder = self.workspace / self.expand(step.get("working-directory", "."))
        self.shell(step["run"], {**self.environment, **own}, folder)
        for line in output.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            self.values[f"steps.{step['id']}.outputs.{name}"] = value

    def shell(self, text: str, environment: dict[str, str], folder: Path) -> None:
        """Run a text as a runner does: an unset expression or a failing line must not pass unnoticed."""
        if _EXPRESSION.search(text):
            raise SystemExit(f"expressions belong into env, not into the text of a step: {text}")
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode  # noqa: S603
        self.status = self.status or status


def load(source: str) -> dict[str, Any]:
    """Return a YAML file; ``FILE.md:NAME`` is the block of a page whose first line ends in that name."""
    page, _, name = source.partition(":")
    text = Path(page).read_text(encoding="utf-8")
    if not name:
        return dict(yaml.safe_load(text))
    blocks = list(re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL))
    return next(dict(yaml.safe_load(block)) for block in blocks if block.split("\n")[0].endswith(name))


def shell_steps(found: dict[str, Any], job: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of an action, a workflow's job or a GitLab job, as those of a workflow."""
    if "runs" in found:
        yield from found["runs"]["steps"]
    elif "jobs" in found:
        yield from found["jobs"][job]["steps"]
    else:
        yield {"name": job, "run": "\n".join([*found[job].get("before_script", []), *found[job]["script"]])}


def main() -> int:
    """Run the steps; return the status of the first that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("source", help="a file, or PAGE.md:NAME for a block of a page")
    parser.add_argument("--job", default="", help="the job of a workflow or of GitLab")
    parser.add_argument("--workspace", type=Path, required=True, help="folder of the project to run in")
    parser.add_argument("--temp", type=Path, required=True, help="folder for the runner's own files")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="value of an expression")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="variable of the job")
    options = parser.parse_args()
    found, root = load(options.source), Path(__file__).resolve().parents[1]
    temp = options.temp.resolve()
    temp.mkdir(parents=True, exist_ok=True)
    variables = found.get("env", {}) or found.get(options.job, {}).get("variables", {})
    environment = {
        **os.environ,
        **{name: str(value) for name, value in variables.items() if "$" not in str(value)},
        "CI": "true",
        "RUNNER_TEMP": str(temp),
        "CI_PROJECT_DIR": str(options.workspace.resolve()),
        "GITHUB_OUTPUT": str(temp / "output"),
        "GITHUB_STEP_SUMMARY": str(temp / "summary.md"),
        **dict(pair.split("=", 1) for pair in options.env),
    }
    if "runs" in found or "jobs" in found:
        environment["GITHUB_ACTIONS"] = "true"
    inputs = {f"inputs.{name}": str(one.get("default", "")) for name, one in found.get("inputs", {}).items()}
    values = {**inputs, "github.action_path": str(root), "runner.temp": str(temp)}
    runner = Runner(options.workspace.resolve(), environment, values | dict(p.split("=", 1) for p in options.set))
    for step in shell_steps(found, options.job):
        runner.run(step)
    return runner.status


if __name__ == "__main__":
    sys.exit(main())
