"""An independent witness for swaps: a mode that changes the result of one call while the model runs."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.values import value_of


class EditOne(TorchFunctionMode):
    """Replaces one tensor of the result of one call; what an operation overwrote, it overwrites again.

    Parameters
    ----------
    func, number
        The function, and which of its calls, from 0.
    position
        Which tensor of its result.
    in_place
        Whether the operation overwrote it.
    edit
        Returns the new tensor.
    """

    def __init__(self, func, number, position, in_place, edit):
        super().__init__()
        self._func, self._left, self._position = func, number, position
        self._in_place, self._edit = in_place, edit
        self.done = False
        self.keeps_requires_grad = True
        """Whether the new tensor requires gradients if the old one does: a model may ask, and the edit changes it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func != self._func:
            return result
        self._left -= 1
        return self._edited(result, args) if self._left == -1 else result

    def _edited(self, result, args):
        self.done = True
        made = [tensor for _, tensor in walk(result)]
        old = (made or [args[0]])[self._position]
        new = self._edit(old.clone())
        self.keeps_requires_grad = new.requires_grad == old.requires_grad
        if not (self._in_place or not made):
            return substitute(result, lambda leaf: new if leaf is old else leaf)
        with torch.no_grad():
            old.copy_(new)
        return result


def edit_of(history, node, edit):
    """Return a mode that makes an edit at a node of a history; None if no mode can tell it as the recorder does.

    That holds for functions whose inside was recorded, and for those that return their own argument.
    """
    calls, call = history.recording.calls, node.call
    alike = [one for one in calls[: node.number + 1] if one.info.func == call.info.func]
    in_place = node.value.slot in call.writes
    is_argument = any(value_of(read).slot == node.value.slot for _, read in edges_in(call))
    if any(one.group is not None for one in alike) or (is_argument and not in_place):
        return None
    return EditOne(call.info.func, len(alike) - 1, node.value.position, in_place, edit)
