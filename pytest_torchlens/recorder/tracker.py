"""The tracking methods of a recorder, and the items that they create."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.recorder.recorder_options import check_some
from pytest_torchlens.recorder.tracking import check_hooks
from pytest_torchlens.recorder.tracking import check_tensor
from pytest_torchlens.recorder.tracking import prefixed_name
from pytest_torchlens.recorder.tracking import select_modules
from pytest_torchlens.recorder.tracking import select_parameters
from pytest_torchlens.records.names import nearest
from pytest_torchlens.records.options import FLAG

if TYPE_CHECKING:
    from torch import nn

    from pytest_torchlens.recorder.recording import TrainingRecording


VIEWS = ("auto", "heatmap", "channels", "histogram", "pca", "square")

WHOLE_BATCH = ("histogram", "pca", "square")
"""Views that show all samples of a batch."""

Transform = Callable[[torch.Tensor], torch.Tensor]


class Tracker:
    """Tracks models, their layers and parameters, and single tensors."""

    _recording: TrainingRecording

    @property
    def trackable(self) -> dict[str, set[str]]:
        """The kinds seen so far for each layer: ``output``, ``gradient``, or both, by name."""
        return {name: set(kinds) for name, kinds in self._recording.hooks.layer_kinds.items()}

    def track_model(
        self,
        model: nn.Module,
        name: str = "model",
        *,
        gradients: bool = True,
        **drawing: Any,
    ) -> None:
        """Track a model's output, and the gradient of the output.

        Parameters
        ----------
        model
            The model.  The first tensor in its output is tracked.
        name
            Name of the output; its gradient is this name followed by ``.grad``.
        gradients
            Track the gradient too.
        **drawing
            How it is drawn, and what else is done with each frame:

            ``view``, default ``"auto"``: ``heatmap``, ``channels``, ``histogram``, ``pca`` or ``square``; by default
            the shape decides.
            ``transform``: a function applied to the tensor when it is read.
            ``callback``: called in the recorder process with each frame, ``callback(name, step, values)``, where
            `values` is a NumPy array of 32-bit floats.  It is a function or a class from the top level of a file.  A
            class is instantiated there once for each item, without arguments; its ``close``, if any, is called at the
            end.
            ``video``, default True: whether there is a video.

        Raises
        ------
        TypeError, ValueError
            If `drawing` has an unknown option or a wrong value, or the name is taken.
        """
        FLAG.check("gradients", gradients)
        how = Drawing.of(drawing)
        self._recording.optimizers.add_model(model)
        check_hooks(model)
        self._recording.hooks.hook_module(model, *self._recording.pair(name, "output", how, True, gradients))

    def track_layers(
        self,
        model: nn.Module,
        layers: str | list[str] | None = None,
        name: str = "",
        *,
        outputs: bool = True,
        gradients: bool = True,
        **drawing: Any,
    ) -> None:
        """Track the outputs of a model's modules, and the gradients of these outputs.

        Modules that return no tensor of floats, or receive no gradient, are skipped.  `trackable` lists what was seen.

        Parameters
        ----------
        model
            The model.
        layers
            Globs of module paths, such as ``"features.*"``.  Default: all modules that have no submodules or own
            parameters.
        name
            Prefix of all names, followed by a dot; needed for a second model.
        outputs, gradients
            What to track.
        **drawing
            As in `track_model`.

        Raises
        ------
        TypeError
            If an argument has a wrong type.
        ValueError
            If a glob matches no module, a name is taken, or `outputs` and `gradients` are both False.
        """
        check_some(outputs=outputs, gradients=gradients)
        how = Drawing.of(drawing)
        recording = self._recording
        recording.optimizers.add_model(model)
        check_hooks(model)
        for path, module in select_modules(model, layers).items():
            items = recording.pair(prefixed_name(name, path), "output", how, outputs, gradients)
            recording.hooks.hook_module(module, *items)

    def track_parameters(
        self,
        model: nn.Module,
        parameters: str | list[str] = "*",
        name: str = "",
        *,
        values: bool = True,
        gradients: bool = True,
        updates: bool = True,
        **drawing: Any,
    ) -> None:
        """Track parameters at the end of each step: values, gradients and updates.

        Parameters
        ----------
        model
            The model.
        parameters
            Globs of parameter names, such as ``"*.weight"``.
        name
            Prefix of all names, followed by a dot; needed for a second model.
        values, gradients, updates
            What to track.  An update and its ratio to the values are computed from at most 65,536 of the values.
        **drawing
            As in `track_model`.

        Raises
        ------
        TypeError
            If an argument has a wrong type.
        ValueError
            If a glob matches no parameter, a name is taken, a parameter has no values yet, or `values`, `gradients` and
            `updates` are all False.
        """
        check_some(values=values, gradients=gradients, updates=updates)
        how = Drawing.of(drawing)
        recording = self._recording
        recording.optimizers.add_model(model)
        for path, parameter in select_parameters(model, parameters).items():
            full = prefixed_name(name, path)
            items = recording.pair(full, "parameter", how, values, gradients)
            update = recording.new_item(f"{full}.update", "update", how) if updates else None
            recording.parameters.add(parameter, *items, update)
        recording.parameters.remember()

    def track_tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        **drawing: Any,
    ) -> None:
        """Record the present values of a tensor, and its gradient when backward computes it.

        Call it in each step with the tensor of that step.  The gradient of a leaf, such as a learned input, is recorded
        in later steps too.

        Parameters
        ----------
        name
            Name of the tensor; its gradient is this name followed by ``.grad``.
        tensor
            A tensor of floating-point or complex numbers.
        **drawing
            As in `track_model`; those of the first call apply.

        Raises
        ------
        TypeError
            If `tensor` is not such a tensor.
        ValueError
            If another item has this name.
        """
        check_tensor(name, tensor)
        recording = self._recording
        value = recording.items.get(name)
        if value is None or value.kind != "tensor":
            recording.pair(name, "tensor", Drawing.of(drawing), True, True)
        recording.hooks.hook_tensor(tensor, recording.items[name], recording.items[f"{name}.grad"])


@dataclass(frozen=True)
class Drawing:
    """How an item is drawn, transformed and passed to a callback.

    Attributes
    ----------
    view : str
        One of `VIEWS`; ``auto`` chooses by the shape.
    transform : callable, optional
        Applied to the tensor when it is read, in the training process.
    callback : callable, optional
        Called with each frame in the recorder process: ``callback(name, step, values)``.
    video : bool
        Whether there is a video.
    """

    view: str = "auto"
    transform: Transform | None = None
    callback: Callable[..., Any] | None = None
    video: bool = True

    @classmethod
    def of(cls, options: dict[str, Any]) -> Drawing:
        """Check the options and return them.

        Raises
        ------
        TypeError
            If an option is unknown, `transform` is not callable, or `video` is not True or False.
        ValueError
            If the view is unknown, or another process cannot import the callback.
        """
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(f"unknown drawing option {name!r}; {nearest(name, names)}")
        return cls(**options)

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise ValueError(f"unknown view {self.view!r}; {nearest(str(self.view), VIEWS)}")
        if self.transform is not None and not callable(self.transform):
            raise TypeError(
                f"transform: expected a function that takes a tensor and returns one, got {self.transform!r}"
            )
        if self.callback is not None:
            callback_location(self.callback)
        FLAG.check("video", self.video)


@dataclass(frozen=True)
class Item:
    """One tensor, followed over the steps.

    Attributes
    ----------
    number : int
        Place in the order of tracking.
    name : str
        Module path, name of the parameter or of the tensor; gradients end in ``.grad``, updates in ``.update``.
    kind : str
        ``output``, ``output gradient``, ``parameter``, ``parameter gradient``, ``update``, ``tensor``,
        ``tensor gradient``.
    drawing : Drawing
        How it is drawn.
    """

    number: int
    name: str
    kind: str
    drawing: Drawing

    @property
    def is_batch(self) -> bool:
        """Whether only the first sample is drawn."""
        return self.kind.startswith("output") and self.drawing.view not in WHOLE_BATCH

    def announcement(self) -> dict[str, Any]:
        """Return what the recorder process needs to know."""
        return {
            "name": self.name,
            "kind": self.kind,
            "view": self.drawing.view,
            "video": self.drawing.video,
        }

    @property
    def callback(self) -> dict[str, str] | None:
        """Where the recorder process finds the callback; None without one."""
        return callback_location(self.drawing.callback) if self.drawing.callback else None


def callback_location(callback: Callable[..., Any]) -> dict[str, str]:
    """Return where another process can import a function or a class.

    Raises
    ------
    ValueError
        If it has no importable name: a lambda, a method, or a nested function.
    """
    name = getattr(callback, "__qualname__", "<locals>")
    module = getattr(callback, "__module__", None)
    if not name.isidentifier() or module is None:
        raise ValueError(
            f"callback: expected a function or a class from the top level of a file, got {callback!r}; the recorder "
            "process imports the callback by its name"
        )
    source = inspect.getsourcefile(sys.modules[module]) if module in sys.modules else None
    return {"module": module, "name": name, "file": str(Path(source).resolve()) if source else ""}
