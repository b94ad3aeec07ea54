"""Feed-forward models of the zoos have no layer of several passes; those that repeat themselves are listed.

Which operations run does not hang on the weights: models are built and run on the meta device, where nothing is
computed, but for those that look at values.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from pytest_torchlens import get_model_metadata
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

# one of each family of timm, the cheapest
TIMM = """
beitv2_base_patch16_224 lambda_resnet26t test_byobnet cait_xxs24_224 coat_lite_tiny convit_tiny convmixer_768_32
test_convnext2 cpubone_nano crossvit_9_240 csatv2 cs3darknet_s cspnext_tiny davit_tiny deepseek_vit_412m
deit_tiny_patch16_224 densenetblur121d dla46_c dpn48b edgenext_xx_small efficientformer_l1 efficientformerv2_s0
test_efficientnet_evos efficientvim_m1 efficientvit_b0 efficientvit_m1 vit_tiny_patch16_dinov3_qkvb fasternet_t0
fastvit_t8 focalnet_tiny_lrf gcvit_xxtiny gemma4_vit_167m_enc ghostnet_050 hardcorenas_a hgnetv2_b0
hiera_tiny_224 hieradet_small hrnet_w18_small iformer_t inception_next_atto inception_resnet_v2 inception_v3
inception_v4 lcnetv2_small levit_conv_128s lowformer_b1 test_mambaout test_coatnet poolformer_s12 gmlp_ti16_224
lcnet_035 mobilenetv5_base mobilevitv2_050 mvitv2_tiny naflexvit_base_patch16_parfac_gap nasnetalarge nest_tiny
nextvit_small test_nfnet pit_ti_224 pnasnet5large pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050
repvit_m1_1 res2net50_26w_4s resnest14d test_resnet resnetv2_18d rexnet_100 selecsls42 legacy_seresnet18
sequencer2d_s shvit_s1 skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224
swinv2_tiny_window8_256 swinv2_cr_tiny_ns_224 tiny_vit_5m_224 tnt_s_patch16_224 tresnet_m twins_svt_small vgg11
visformer_tiny test_vit vit_tiny_r_s16_p8_224 test_vit_relpos samvit_base_patch16_224 vitamin_small_224
volo_d1_224 ese_vovnet19b_slim_dw legacy_xception xception41 xcit_nano_12_p8_224
""".split()  # fmt: skip

# what repeats, by file and function
REPEATS = {
    "coat_lite_tiny": {("coat.py", "forward")},  # blocks share their positional encodings
    "csatv2": {("csatv2.py", "forward")},  # the same transform over rows and then over columns
    "hiera_tiny_224": {("hiera.py", "forward")},  # a loop that unrolls the tokens
}
HEADS = ["*rcnn_*", "fcos_*", "retinanet_*"]
"""Detection heads run on each level of the pyramid."""
LOOPS = ["raft_*", "ssd*", *HEADS]
"""Also recurrent: RAFT's iterations, and the loop over classes after SSD's heads."""


VALUES_NEEDED = ["vit_tiny_r_s16_p8_224", "vitamin_small_224", "ssd*", *HEADS]
"""Detection models keep boxes by score; these two of timm are built by running them."""


class WithoutWeights(TorchFunctionMode):
    """Parameters are made on the meta device; what a constructor computes is not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"device": "meta"} if func is torch.empty else kwargs))


def history_of(zoo, name):
    case = load_zoo(Path(shipped_folder(), f"{zoo}.yaml")).case(name)
    torch.manual_seed(0)
    if any(fnmatch(name, glob) for glob in VALUES_NEEDED):
        return with_values(case, name)
    with WithoutWeights():
        model = case.provider.build(name, case.settings.kwargs, pretrained=False).eval()
    inputs = case.make_inputs(model)
    args, kwargs = tree_map(
        lambda leaf: leaf.to("meta") if torch.is_tensor(leaf) else leaf, (inputs.args, inputs.kwargs)
    )
    with torch.no_grad():
        return get_model_metadata(model.to("meta"), args, kwargs)


def with_values(case, name):
    small = {"min_size": 128, "max_size": 160} if any(fnmatch(name, glob) for glob in HEADS) else {}
    model = case.provider.build(name, case.settings.kwargs | small, pretrained=False).eval()
    inputs = case.make_inputs(model)
    with torch.no_grad():
        return get_model_metadata(model, inputs.args, inputs.kwargs)


def torchvision_names():
    torchvision = pytest.importorskip("torchvision")
    return [name for name in torchvision.models.list_models() if not name.startswith("quantized")]


def places(history):
    """Return file and function of each layer of several passes."""
    several = [op for op in history if op.layer_passes_total > 1]
    lines = [op.source_line.rpartition(", in ") for op in several]
    return {(Path(where.rpartition(":")[0]).name, function) for where, _, function in lines}


@pytest.mark.zoo
@pytest.mark.parametrize("name", torchvision_names())
def test_torchvision(name):
    history = history_of("torchvision", name)
    assert history.model_is_recurrent is any(fnmatch(name, glob) for glob in LOOPS)


@pytest.mark.zoo
@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    pytest.importorskip("timm")
    assert places(history_of("timm", name)) == REPEATS.get(name, set())


def test_small_feed_forward_models():
    pytest.importorskip("torchvision")
    for name in ("alexnet", "shufflenet_v2_x0_5", "swin_v2_t"):
        assert not history_of("torchvision", name).model_is_recurrent


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t", "mobilenet_v3_small"])
def test_with_values_it_is_the_same(name):
    """On the CPU, attention takes a path of its own."""
    pytest.importorskip("torchvision")
    case = load_zoo(Path(shipped_folder(), "torchvision.yaml")).case(name)
    assert not with_values(case, name).model_is_recurrent


def test_raft_iterates_twelve_times():
    pytest.importorskip("torchvision")
    history = history_of("torchvision", "raft_small")
    update = [op for op in history if op.computed_with_params and op.layer_passes_total > 1]
    assert {op.layer_passes_total for op in update} == {12}
    assert all("update_block" in op.containing_module_origin for op in update)


def test_a_shared_head_has_a_pass_for_each_level():
    pytest.importorskip("torchvision")
    history = history_of("torchvision", "fasterrcnn_mobilenet_v3_large_320_fpn")
    several = {op.containing_module_origin.partition(":")[0] for op in history if _is_repeated(op)}
    assert several == {"rpn.head.conv.0.0", "rpn.head.cls_logits", "rpn.head.bbox_pred"}
    assert {op.layer_passes_total for op in history if _is_repeated(op)} == {3}


def _is_repeated(op):
    return op.computed_with_params and op.layer_passes_total > 1
