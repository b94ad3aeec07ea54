from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def on_a_terminal(pytester: pytest.Pytester, *arguments: str) -> str:
    """Run pytest with a terminal of its own; return all it wrote there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=pytester.path, env=environment):
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 4096):
                text += chunk
        except OSError:  # the other side is closed
            pass
    os.close(ours)
    return text.decode()


def test_a_terminal_shows_the_stage_and_takes_it_away(pytester: pytest.Pytester):
    text = on_a_terminal(pytester, "--lens-zoo=tiny:mlp", "--lens-validate")
    for stage in ("build", "inputs", "forward", "validate"):
        assert f"mlp: {stage}" in text
    assert text.rfind("\x1b7\x1b[K\x1b8") > text.rfind("mlp: validate")


def test_nothing_is_shown_with_q(pytester: pytest.Pytester):
    assert "mlp: forward" not in on_a_terminal(pytester, "--lens-zoo=tiny:mlp", "-q")


def test_a_log_with_v_has_the_stages_as_words(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "-v")
    result.stdout.fnmatch_lines(["*::mlp build inputs forward record PASSED *"])


def test_a_plain_log_has_none(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    result.stdout.fnmatch_lines(["model_zoo_configs/tiny.yaml . *100%*"])
