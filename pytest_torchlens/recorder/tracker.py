"""What a recorder tracks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.recorder.items import Drawing
from pytest_torchlens.recorder.recorder_options import check_flags
from pytest_torchlens.recorder.recorder_options import check_some
from pytest_torchlens.recorder.tracking import check_hooks
from pytest_torchlens.recorder.tracking import check_tensor
from pytest_torchlens.recorder.tracking import chosen_modules
from pytest_torchlens.recorder.tracking import chosen_parameters
from pytest_torchlens.recorder.tracking import joined

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pytest_torchlens.recorder.recording import Recording


class Tracker:
    """Tracks models, their layers and parameters, and single tensors."""

    _recording: Recording

    @property
    def trackable(self) -> dict[str, set[str]]:
        """What of each layer has come so far: ``output``, ``gradient``, or both, by name."""
        return {name: set(kinds) for name, kinds in self._recording.watch.reached.items()}

    def track_model(
        self,
        model: nn.Module,
        name: str = "model",
        *,
        gradients: bool = True,
        **drawing: Any,
    ) -> None:
        """Track what a model returns, and its gradient.

        Parameters
        ----------
        model
            Of what it returns, the first tensor in it counts.
        name
            Name of the output; its gradient has ``.grad`` after it.
        gradients
            Track the gradient too.
        **drawing
            How it is drawn, and what else is done with each frame:

            ``view``, default ``"auto"``: ``heatmap``, ``channels``, ``histogram``, ``pca`` or ``square``; by default
            the shape decides.
            ``transform``: a function applied to the tensor when it is read.
            ``callback``: called in the process beside with each frame, ``callback(name, step, values)``, where
            `values` is a NumPy array of 32-bit floats.  A function or a class from the top level of a file; of a
            class one object an item is made there, without arguments, and its ``close``, if any, called at the end.
            ``video``, default True: whether there is a video.

        Raises
        ------
        TypeError, ValueError
            If `drawing` has a word or a value that it cannot have, or the name is taken.
        """
        check_flags(gradients=gradients)
        how = Drawing.of(drawing)
        self._recording.optimizers.own(model)
        check_hooks(model)
        self._recording.watch.module(model, *self._recording.pair(name, "output", how, True, gradients))

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
        """Track what modules of a model return, and the gradients that come back for it.

        Those that return no tensor of floats, or no gradient comes back to, are left out by themselves:
        `trackable` says which they are.

        Parameters
        ----------
        model
            The model.
        layers
            Globs of module paths, such as ``"features.*"``.  Default: all without submodules or with
            parameters of their own.
        name
            Put before all names, with a dot: needed for a second model.
        outputs, gradients
            What to track.
        **drawing
            As in `track_model`.

        Raises
        ------
        TypeError
            If an argument is of another kind.
        ValueError
            If a glob fits no module, a name is taken, or nothing is left to be tracked.
        """
        check_some(outputs=outputs, gradients=gradients)
        how = Drawing.of(drawing)
        recording = self._recording
        recording.optimizers.own(model)
        check_hooks(model)
        for path, module in chosen_modules(model, layers).items():
            items = recording.pair(joined(name, path), "output", how, outputs, gradients)
            recording.watch.module(module, *items)

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
        """Track parameters at the end of each step: values, gradients, and what the step did to them.

        Parameters
        ----------
        model
            The model.
        parameters
            Globs of parameter names, such as ``"*.weight"``.
        name
            Put before all names, with a dot: needed for a second model.
        values, gradients, updates
            What to track.  An update, and its ratio to the values, is that of a sample of 65,536 values at most.
        **drawing
            As in `track_model`.

        Raises
        ------
        TypeError
            If an argument is of another kind.
        ValueError
            If a glob fits no parameter, a name is taken, a parameter has no values yet, or nothing is left to be
            tracked.
        """
        check_some(values=values, gradients=gradients, updates=updates)
        how = Drawing.of(drawing)
        recording = self._recording
        recording.optimizers.own(model)
        for path, parameter in chosen_parameters(model, parameters).items():
            full = joined(name, path)
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
        """Record a tensor as it is now, and its gradient when backward comes to it.

        Call it in each step with the tensor of that step.  Of a leaf, such as an input that is learned, the
        gradient is recorded in later steps too.

        Parameters
        ----------
        name
            Its name; its gradient has ``.grad`` after it.
        tensor
            Of floating or complex numbers.
        **drawing
            As in `track_model`; those of the first call hold.

        Raises
        ------
        TypeError
            If it is no such tensor.
        ValueError
            If the name is that of something else.
        """
        check_tensor(name, tensor)
        recording = self._recording
        value = recording.items.get(name)
        if value is None or value.kind != "tensor":
            recording.pair(name, "tensor", Drawing.of(drawing), True, True)
        recording.watch.tensor(tensor, recording.items[name], recording.items[f"{name}.grad"])
