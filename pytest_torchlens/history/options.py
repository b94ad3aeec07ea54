"""How a forward pass is recorded and what of it is saved: kept with the history, for a rerun."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType

from pytest_torchlens.capture import Keep
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.history.selection import LayersToSave
from pytest_torchlens.history.selection import keys_and_tests


@dataclass(frozen=True)
class TraceOptions:
    """Options of `log_forward_pass` but for those of the drawing, checked.

    Raises
    ------
    TypeError, LookupKeyError
        If an option is of a kind that it cannot be.
    """

    layers_to_save: LayersToSave = "all"
    saving: SaveOptions = dataclasses.field(default_factory=SaveOptions)
    random_seed: int | None = None
    exhaust: bool = False

    def __post_init__(self) -> None:
        """Check before anything runs."""
        if not self.saves_none and not self.saves_all:
            keys_and_tests(self.layers_to_save)

    @property
    def saves_all(self) -> bool:
        """Whether every layer is saved."""
        return isinstance(self.layers_to_save, str) and self.layers_to_save == "all"

    @property
    def saves_none(self) -> bool:
        """Whether no layer is saved."""
        wanted = self.layers_to_save
        return wanted is None or (isinstance(wanted, str | list | tuple) and wanted in ("none", [], ()))

    @property
    def keep(self) -> Keep:
        """What the recording keeps."""
        if self.saves_none:
            return "none"
        return "all" if self.saving == SaveOptions() else self.saving

    def again(
        self,
        random_seed: int | EllipsisType | None,
        layers_to_save: LayersToSave | EllipsisType,
        save_options: SaveOptions | EllipsisType | None,
        save_gradients: bool | EllipsisType,
    ) -> TraceOptions:
        """Return the options for another pass; ``...`` stands for what is here, with a new folder to stream to."""
        saving = self._saving_again() if save_options is ... else save_options
        gradients = self.saving.gradients if save_gradients is ... else save_gradients
        return TraceOptions(
            self.layers_to_save if layers_to_save is ... else layers_to_save,
            with_gradients(saving, gradients),
            self.random_seed if random_seed is ... else random_seed,
            self.exhaust,
        )

    def _saving_again(self) -> SaveOptions:
        if self.saving.stream_to is None:
            return self.saving
        return dataclasses.replace(self.saving, stream_to=_free(Path(self.saving.stream_to)))


def with_gradients(saving: SaveOptions | None, gradients: bool) -> SaveOptions:
    """Return options, or the default ones, with gradients noted or not.

    Raises
    ------
    TypeError
        If `saving` is something else.
    """
    if not isinstance(saving, SaveOptions | None):
        raise TypeError(f"save_options is {saving!r:.80}; it takes SaveOptions(detach=True, …)")
    return dataclasses.replace(saving or SaveOptions(), gradients=gradients)


def _free(folder: Path) -> Path:
    """Return the first of ``NAME-2``, ``NAME-3``, … that is not there."""
    return next(path for number in itertools.count(2) if not (path := Path(f"{folder}-{number}")).exists())
