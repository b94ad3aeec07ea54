"""Runs reproductions in an environment that has torch alone: imports nothing else, and nothing of this package.

Requests and answers are written by `torch.save`, each after its length: tensors to keep, and programs to run on them,
each of which has an answer of its own.
"""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]
Cut = Sequence[tuple[int, int, int]]


def facts() -> dict[str, str]:
    """Return what this environment is."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def run(text: str, tensors: Tensors) -> list[torch.Tensor] | str:
    """Return what a reproduction computes, or the text of its error."""
    namespace: dict[str, Any] = {"__name__": "trial"}
    try:
        exec(compile(text, "<reproduction>", "exec"), namespace)  # noqa: S102 - the file that is to be written
        results = namespace["compute"](**{name: tensor.clone() for name, tensor in tensors.items()})
    except Exception as error:  # noqa: BLE001 - a kernel may raise anything
        return f"{type(error).__name__}: {error}"
    return [result.detach() for result in (results if isinstance(results, tuple) else (results,))]


def cut(tensor: torch.Tensor, places: Cut) -> torch.Tensor:
    """Return a contiguous copy of a part of a tensor: some dimensions cut to a start and a length."""
    for dim, start, length in places:
        tensor = tensor.narrow(dim, start, length)
    return tensor.contiguous()


def main() -> None:
    """Answer requests until the input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever an operation prints
    tensors: Tensors = {}
    send(answers, facts())
    while size := int.from_bytes(requests.read(8), "little"):
        request = torch.load(io.BytesIO(requests.read(size)), weights_only=True)
        tensors = request.get("tensors", tensors)
        parts = ({name: cut(one, cuts.get(name, ())) for name, one in tensors.items()} for _, cuts in request["trials"])
        for (text, _), part in zip(request["trials"], parts, strict=True):
            send(answers, run(text, part))


def send(stream: IO[bytes], message: object) -> None:
    """Write a message after its length."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    stream.write(len(buffer.getvalue()).to_bytes(8, "little") + buffer.getvalue())
    stream.flush()


if __name__ == "__main__":
    main()
