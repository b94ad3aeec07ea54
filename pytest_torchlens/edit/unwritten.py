"""Which calls of a pass return memory that nothing may have been written to: their values are different each time."""

from __future__ import annotations

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import values_read

_VIEWS = frozenset(
    """__getitem__ view view_as reshape reshape_as flatten unflatten ravel T mT H mH t permute transpose swapaxes
    swapdims movedim moveaxis squeeze unsqueeze expand expand_as broadcast_to narrow select diagonal as_strided unfold
    split tensor_split hsplit vsplit dsplit chunk unbind data detach real imag view_as_real view_as_complex
    __iter__""".split()
)
"""Functions that return what is in the memory of their argument, written or not."""


def on_unwritten_memory(recording: Recording) -> set[int]:
    """Return the numbers of calls whose results may hold memory of `torch.empty` that nothing was written to.

    Beside `torch.empty` and its like these are writes to such memory, which may be to a part of it, and views of it.
    What reads it in any other way reads what the model has written.
    """
    found = set(recording.uninitialised)
    slots: set[int] = set()
    for number, call in enumerate(recording.calls):
        outputs = {value.slot for value in call.outputs}
        if number not in found:
            if not slots:
                continue
            is_view = call.info.name in _VIEWS and any(value.slot in slots for _, value in values_read(call))
            if not is_view and slots.isdisjoint(outputs):
                continue
        found.add(number)
        slots |= outputs
    return found
