"""Models of a zoo that hooks change."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.plugin.hooks import has_model_hooks
from pytest_torchlens.zoo import ModelCase
from pytest_torchlens.zoo.case import inputs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from pytest_torchlens.zoo import Inputs


@dataclass(frozen=True, kw_only=True)
class HookedCase(ModelCase):
    """A model that hooks change; it is built in the process that has the hooks."""

    config: pytest.Config

    def build(self, names: Mapping[str, str] | None = None) -> nn.Module:
        """Return the model, built by the settings and then changed by the hooks."""
        model = super().build(names)
        self.config.hook.pytest_lens_configure_model(config=self.config, case=self, model=model)
        return model

    def make_inputs(self, model: nn.Module) -> Inputs:
        """Return the inputs from a hook, else those of the settings."""
        with self.fixed_seed():
            inputs = self.config.hook.pytest_lens_make_inputs(config=self.config, case=self, model=model)
        return super().make_inputs(model) if inputs is None else inputs_of(inputs)


def with_hooks(case: ModelCase, config: pytest.Config) -> ModelCase:
    """Return a case that applies the hooks, if any are implemented."""
    if not has_model_hooks(config):
        return case
    return HookedCase(config=config, **{field.name: getattr(case, field.name) for field in fields(case)})
