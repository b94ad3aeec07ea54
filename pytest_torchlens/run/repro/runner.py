"""Runs reproductions in an environment that has torch alone: imports nothing else, and nothing of this package.

Requests and answers are written by `torch.save`, each after its length: tensors to keep, or programs to run on them.
"""

import io
import os
import platform
import sys

import torch


def facts():
    """Return what this environment is."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def run(text, tensors):
    """Return what a reproduction computes: a list of tensors, or the text of its error."""
    namespace = {"__name__": "trial"}
    try:
        exec(compile(text, "<reproduction>", "exec"), namespace)
        results = namespace["compute"](**{name: tensor.clone() for name, tensor in tensors.items()})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    results = results if isinstance(results, tuple) else (results,)
    return [result.detach() for result in results]


def narrowed(tensors, cuts):
    """Return the tensors with some dimensions cut to a start and a length."""
    return {name: cut(tensor, cuts.get(name, ())) for name, tensor in tensors.items()}


def cut(tensor, places):
    """Return a contiguous copy of a part of a tensor."""
    for dim, start, length in places:
        tensor = tensor.narrow(dim, start, length)
    return tensor.contiguous()


def main():
    """Answer requests until the input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever an operation prints
    tensors = {}
    send(answers, facts())
    while size := int.from_bytes(requests.read(8), "little"):
        request = torch.load(io.BytesIO(requests.read(size)), weights_only=True)
        tensors = request.get("tensors", tensors)
        send(answers, [run(text, narrowed(tensors, cuts)) for text, cuts in request["programs"]])


def send(stream, answer):
    """Write an answer after its length."""
    buffer = io.BytesIO()
    torch.save(answer, buffer)
    stream.write(len(buffer.getvalue()).to_bytes(8, "little") + buffer.getvalue())
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
