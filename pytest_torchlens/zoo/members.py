"""Models that are classes or functions of a library's module, called with what the zoo file says."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.inputs import InputSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from torch import nn

AUDIO = (
    "ConvTasNet Conformer DeepSpeech Emformer HDemucs Tacotron2 Wav2Letter WaveRNN conv_tasnet_base "
    "emformer_rnnt_base hdemucs_low hubert_base hubert_pretrain_base squim_objective_base squim_subjective_base "
    "wav2vec2_base wavlm_base"
).split()
GRAPHS = (
    "AttentiveFP EdgeCNN GAT GATConv GCN GCNConv GIN GraphConv GraphSAGE GraphUNet LightGCN MLP PNA RGCNConv SAGEConv "
    "TransformerConv"
).split()
SEGMENTATION = "DPT DeepLabV3 DeepLabV3Plus FPN Linknet MAnet PAN PSPNet Segformer UPerNet Unet UnetPlusPlus".split()


class MembersProvider:
    """Members of one module that build models; those that the installed version lacks are left out.

    Parameters
    ----------
    module
        Where they are looked up.
    names
        Their names.
    """

    def __init__(self, module: ModuleType, names: list[str]) -> None:
        self._module = module
        self._names = [name for name in names if hasattr(module, name)]

    def names(self) -> list[str]:
        """Return the names of those there are."""
        return self._names

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Call the member with `kwargs`."""
        if pretrained:
            raise ZooError(f"{self._module.__name__}: name pretrained weights in 'kwargs', and say 'weights: init'")
        return cast("nn.Module", getattr(self._module, name)(**kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Refuse: these models have nothing in common that would tell."""
        raise ZooError(f"{self._module.__name__}: no 'input' is named for this model, in 'defaults' or in a rule")
