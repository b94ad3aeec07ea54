"""One recording in progress: the tracked tensors, the current step, and the output."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pytest_torchlens.recorder.output import Output
from pytest_torchlens.recorder.readings import Parameters
from pytest_torchlens.recorder.recorder_options import RecorderError
from pytest_torchlens.recorder.series import ByName
from pytest_torchlens.recorder.series import Row
from pytest_torchlens.recorder.series import Series
from pytest_torchlens.recorder.series import number_row
from pytest_torchlens.recorder.steps import Clock
from pytest_torchlens.recorder.steps import OptimizerSteps
from pytest_torchlens.recorder.tensor_hooks import TensorHooks
from pytest_torchlens.recorder.tracker import Drawing
from pytest_torchlens.recorder.tracker import Item
from pytest_torchlens.recorder.tracking import check_name

if TYPE_CHECKING:
    import torch

    from pytest_torchlens.recorder.expectations import Expectations
    from pytest_torchlens.recorder.readings import StepReading
    from pytest_torchlens.recorder.recorder_options import ExpectationError
    from pytest_torchlens.recorder.recorder_options import RecorderOptions


class TrainingRecording:
    """Connects hooks, parameters, optimizers, expectations and output.

    Parameters
    ----------
    options
        Options of the recorder.
    expectations
        Checked in each step.
    """

    def __init__(self, options: RecorderOptions, expectations: Expectations) -> None:
        self.options = options
        self.expectations = expectations
        self.note = ""
        self.series: ByName[Series] = ByName()
        self.items: dict[str, Item] = {}
        self.clock = Clock(options)
        self.hooks = TensorHooks(options, self.clock, expectations, self._show)
        self.parameters = Parameters(self.hooks)
        self.output = Output(options)
        self.is_closed = False
        self._has_ended_step = False
        automatic = options.steps != "manual"
        self.optimizers = OptimizerSteps(self.parameters.remember, self._optimizer_stepped, automatic=automatic)

    def pair(
        self, name: str, kind: str, drawing: Drawing, outputs: bool, gradients: bool
    ) -> tuple[Item | None, Item | None]:
        """Begin to track a tensor, its gradient, or both."""
        value = self.new_item(name, kind, drawing) if outputs else None
        gradient = self.new_item(f"{name}.grad", f"{kind} gradient", drawing) if gradients else None
        return value, gradient

    def new_item(self, name: str, kind: str, drawing: Drawing) -> Item:
        """Begin to track an item.

        Raises
        ------
        RuntimeError
            If the recorder is closed.
        TypeError
            If the name is not a string.
        ValueError
            If the name is taken.
        """
        self._check_open()
        check_name(name)
        if name in self.items:
            raise ValueError(f"{name!r} is already tracked; give a second model its own name: name='other'")
        item = Item(len(self.items), name, kind, drawing)
        self.items[name] = item
        self.series[name] = Series(name, self.options.keep)
        self.output.declare(item)
        return item

    def log(self, numbers: dict[str, float]) -> None:
        """Store numbers of the current step."""
        __tracebackhide__ = True
        self._check_open()
        self._log(numbers, self.clock.step)

    def end_step(self, numbers: dict[str, float]) -> None:
        """Store numbers of a step, and end it if its optimizer has not."""
        __tracebackhide__ = True
        self._check_open()
        has_ended, self._has_ended_step = self._has_ended_step, False
        step = self.clock.step - has_ended
        if not has_ended:
            self._complete()
        self._log(numbers, step)

    def close(self) -> RecorderError | None:
        """Remove all hooks and finish the files; return the error, if any."""
        if self.is_closed:
            return None
        self.is_closed = True
        self.hooks.close()
        self.optimizers.close()
        return self.output.close()

    def fail(self, error: RecorderError) -> None:
        """Raise or warn about an error of the recorder process, as the options say."""
        __tracebackhide__ = True
        if self.options.on_error == "raise":
            raise error
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("the recorder is closed: create a new one")

    def _optimizer_stepped(self) -> None:
        __tracebackhide__ = True
        self._complete()
        self._has_ended_step = True

    def _complete(self) -> None:
        """End the step: read parameters, store the readings, begin the next step, and raise a failed expectation."""
        __tracebackhide__ = True
        if self.clock.is_recorded or self.expectations:
            self.parameters.read()
        step, is_recorded = self.clock.step, self.clock.is_recorded
        rows = [(reading, reading.row(step)) for reading in self.hooks.finish_step()]
        failure = self.expectations.check(rows)
        self._store(
            [(one.item, row) for one, row in rows if is_recorded or (failure and one.item.name == failure.item)]
        )
        self.clock.advance()
        self.parameters.remember()
        if error := self.output.trouble():
            self.fail(error)
        if failure:
            raise failure

    def _log(self, numbers: dict[str, float], step: int) -> None:
        __tracebackhide__ = True
        for name, number in numbers.items():
            item = self.items.get(name) or self.new_item(name, "scalar", Drawing(video=False))
            if item.kind != "scalar":
                raise ValueError(
                    f"{name!r} is the name of a tracked {item.kind} and cannot name a number: track the model under a "
                    "name, name='model'"
                )
            row = number_row(number, step)
            self._store([(item, row)])
            if failure := self.expectations.check_scalar(name, row):
                raise self._cause(step) or failure

    def _cause(self, step: int) -> ExpectationError | None:
        """Return the failure of a layer in the current step, which is the likely cause of a bad loss."""
        rows = [(reading, reading.row(step)) for reading in self.hooks.readings.all]
        failure = self.expectations.check(rows)
        self._store([(one.item, row) for one, row in rows if failure and one.item.name == failure.item])
        return failure

    def _store(self, rows: list[tuple[Item, Row]]) -> None:
        for item, row in rows:
            self.series[item.name].rows.append(row)
        if rows:
            self.output.write(rows)

    def _show(self, reading: StepReading, values: torch.Tensor) -> None:
        self.output.show(reading, values, self.clock.step, self.note)
