"""The public `Recorder`: options, expectations, steps and results."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.recorder.expectations import Expectations
from pytest_torchlens.recorder.process import check_not_worker
from pytest_torchlens.recorder.recorder_options import RecorderOptions
from pytest_torchlens.recorder.recording import TrainingRecording
from pytest_torchlens.recorder.series import ByName
from pytest_torchlens.recorder.tracker import Tracker
from pytest_torchlens.recorder.tracking import as_number
from pytest_torchlens.records.options import FLAG

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from pytest_torchlens.recorder.process import Counts
    from pytest_torchlens.recorder.series import Series


class Recorder(Tracker):
    """Records tensors of models during training: statistics, videos, and checks of expectations.

    Use it as a context manager, or call `close` when training is over.  Hooks read the tensors and are
    removed then; a tensor is copied when its hook runs.  A step is over when an optimizer of a tracked model
    has stepped, or when `step` is called.  With a `folder`, a recorder process draws and writes; it ends
    when this process ends.

    Parameters
    ----------
    folder : path, optional
        Output folder, created if missing.  Without one there are no files and no recorder process:
        `series` and `expect` work all the same.
    title : str, optional
        Heading of the page; the folder's name by default.
    every : int, default 10
        Record every n-th step.  Expectations are checked in each step.
    per_second : float, optional
        Maximum number of steps to record in a second.
    start, until : int, default 0 and None
        First step to record, and first step to record no longer.
    policy : {"drop", "coalesce", "block"}, default "drop"
        What happens to a frame when the recorder process lags.  ``"drop"``: it is dropped and counted.
        ``"coalesce"``: it waits until a later frame of the same item replaces it.  ``"block"``: training waits.
    steps : {"optimizer", "manual"}, default "optimizer"
        What ends a step.  With ``"manual"`` only `step` does: for several optimizers that take turns.
    no_grad : bool, default False
        Read outputs of layers also under ``torch.no_grad()``.
    scaler : torch.amp.GradScaler, optional
        Gradients of layers and tensors are divided by its scale, and may be infinite.
    videos, page, tensorboard : bool, default True, True, False
        Other files to write: a video of each item, ``index.html`` with curves and videos, TensorBoard event files.
    series : {"csv", "parquet"}, default "csv"
        Format of the table of statistics.
    max_frames, frames_per_second : int, default 1000 and 10
        Maximum number of frames in one video file, and the speed of videos.  Further frames go to another file.
    size : tuple of int, default (480, 360)
        Width and height of videos in pixels.
    slots, slot_values : int, default 512 and 65,536
        Maximum number of frames that wait for the recorder process, and of numbers in a frame.  Of a larger tensor, an
        evenly spread part is drawn.  The memory is allocated once.
    workers : int, default 1
        Number of recorder processes, which share the items.
    keep : int, default 10,000
        Number of latest rows that `series` keeps for each item; the file has all rows.
    timeout : float, default 60
        Seconds that `close` waits for the remaining frames to be written.
    on_error : {"raise", "warn"}, default "raise"
        What happens when the recorder process fails: raise an error, or warn.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Recorder(every=1) as recorder:
    ...     recorder.track_parameters(model, "*.weight")
    ...     recorder.expect(no_nan=True, grad_norm="<1e3")
    ...     for _ in range(3):
    ...         loss = model(torch.ones(2, 4)).pow(2).mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         recorder.step(loss=loss)
    >>> len(recorder.series["0.weight.grad"].norm)
    3
    """

    def __init__(self, folder: Any = None, **options: Any) -> None:
        check_not_worker()
        self._arguments = {"folder": folder} | options
        self._recording = TrainingRecording(RecorderOptions.of(**self._arguments), Expectations())

    def configure(self, **options: Any) -> None:
        """Change options before anything is tracked; for the fixture, which creates the recorder itself."""
        old = self._recording
        if old.items:
            raise RuntimeError("options cannot change once something is tracked: call configure() first")
        arguments = self._arguments | options
        self._recording = TrainingRecording(RecorderOptions.of(**arguments), old.expectations)
        self._arguments = arguments
        old.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    @property
    def folder(self) -> Path | None:
        """Output folder; None if no files are written."""
        return self._recording.options.folder

    @property
    def series(self) -> dict[str, Series]:
        """Statistics over the steps, by the item's name."""
        return self._recording.series

    @property
    def note(self) -> str:
        """Text that frames show, such as the epoch; can be set."""
        return self._recording.note

    @note.setter
    def note(self, text: str) -> None:
        self._recording.note = str(text)

    @property
    def enabled(self) -> bool:
        """Whether steps are recorded; can be set, and applies from the next step."""
        return self._recording.clock.enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        FLAG.check("enabled", value)
        self._recording.clock.enabled = value

    @property
    def report(self) -> dict[str, Counts]:
        """How many frames of each item were seen, written, dropped and coalesced; exact once closed."""
        counted = {name: self._recording.output.counts(item) for name, item in self._recording.items.items()}
        return ByName((name, counts) for name, counts in counted.items() if counts)

    @property
    def rows_dropped(self) -> int:
        """Rows of statistics missing from the table because the recorder process stalled."""
        return self._recording.output.rows_dropped

    def expect(self, *, layers: str = "*", window: int = 10, **expectations: Any) -> None:
        """Add expectations; the step that violates one raises `ExpectationError`.

        Parameters
        ----------
        layers
            Glob of the names to check.
        window
            Number of steps.  A unit is dead if it is zero in this many steps in a row; a parameter fails if it has no
            update or gradient in this many steps in a row; a median is taken over this many earlier steps.
        **expectations
            ``no_nan=True``: no NaN and no infinity in anything tracked.
            ``grad_norm="<1e3"``: Euclidean norm of each gradient.
            ``grad_growth="<100"``: the norm divided by the median of earlier norms.
            ``dead_units="<5%"``: share of a layer's units that were zero in all samples.
            ``update_ratio="1e-5..1e-1"``: norm of an update divided by that of the weight, of two dimensions or more.
            ``output_norm="<1e4"``: norm of each layer's output.
            ``gradients_arrive=True``, ``parameters_move=True``: no gradient or update stays zero.
            ``loss="<10"``, ``loss_decreases=True`` (or ``">20%"``): check the losses passed to `step` and `log`.
            `close` compares the mean of the last quarter of the losses with that of the first.

        Raises
        ------
        TypeError
            If an expectation is unknown, or `layers` is not a glob.
        ValueError
            If a range is invalid or always true, there is no expectation, or `window` is not a number of steps.
        """
        self._recording.expectations.add(layers, window, expectations)
        self._recording.parameters.remember()

    def log(self, **numbers: Any) -> None:
        """Record numbers of the current step, such as the loss."""
        __tracebackhide__ = True
        self._recording.log({name: as_number(name, number) for name, number in numbers.items()})

    def step(self, loss: Any = None, **numbers: Any) -> None:
        """Record numbers of a step, and end it if its optimizer has not.

        Parameters
        ----------
        loss
            The loss, a number or a tensor with one element.
        **numbers
            Other numbers, by name.

        Raises
        ------
        ExpectationError
            If an expectation fails.
        RecorderError
            If the recorder process failed.
        """
        __tracebackhide__ = True
        numbers = ({} if loss is None else {"loss": loss}) | numbers
        self._recording.end_step({name: as_number(name, number) for name, number in numbers.items()})

    def abandon(self) -> None:
        """Remove all hooks and finish the files, without checking expectations or raising errors."""
        self._recording.close()

    def close(self) -> None:
        """Remove all hooks, finish the files, and check the expectations of the whole run.

        Raises
        ------
        ExpectationError
            If an expectation fails, or had nothing to check.
        RecorderError
            If the recorder process failed.
        """
        __tracebackhide__ = True
        recording = self._recording
        if recording.is_closed:
            return
        if error := recording.close():
            recording.fail(error)
        if failure := recording.expectations.check_end(max(recording.clock.step - 1, 0), recording.items.values()):
            raise failure
