"""What ``assert left == right`` says of tensors and histories."""

from __future__ import annotations

import sys
from typing import Any


def explain(operator: str, left: Any, right: Any) -> list[str] | None:
    """Return the lines that explain why a comparison failed; None where there is nothing of ours to say."""
    torch, view = sys.modules.get("torch"), sys.modules.get("pytest_torchlens.history.view")
    if operator != "==":
        return None
    if torch and isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return _of_tensors(torch, left, right)
    if view and isinstance(left, view.HistoryView) and isinstance(right, view.HistoryView):
        return _of_histories(left, right)
    return None


def _of_tensors(torch: Any, left: Any, right: Any) -> list[str]:
    words = [f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in (left, right)]
    try:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        return [" == ".join(words), *(line for line in str(error).splitlines() if line)]
    return [" == ".join(words), "all elements are equal"]


def _of_histories(left: Any, right: Any) -> list[str]:
    from pytest_torchlens.history.rerun import graph_differences

    addresses = {module.address for module in left.record().modules}
    found = graph_differences(left.record().operations, right.record().operations, addresses)
    head = f"history of {left.model_name} == history of {right.model_name}: two passes are two histories"
    return [head, *(found or ["their graphs are alike"])]
