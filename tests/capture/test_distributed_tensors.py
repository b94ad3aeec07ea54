"""`DTensor` in one process: sharded tensors, modules and parallel layers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

distributed = pytest.importorskip("torch.distributed.tensor")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")
functional = pytest.importorskip("torch.distributed._functional_collectives")
fsdp = pytest.importorskip("torch.distributed.fsdp")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def replicated(x, mesh):
    return distributed.distribute_tensor(x, mesh, [distributed.Replicate()])


def write_to_it(x, mesh):
    sharded = replicated(x.clone(), mesh)
    local = sharded.to_local()
    sharded.add_(1)
    return local + sharded.to_local()


def write_to_what_it_holds(x, mesh):
    sharded = replicated(x.clone(), mesh)
    sharded.to_local().mul_(3)
    return (sharded + 1).to_local()


def gathered(x, _mesh):
    one, other = [torch.empty(2, 4)], [torch.empty(2, 4)]
    torch.distributed.all_gather(one, x * 2)
    torch.distributed.all_gather(other, x * 3)
    return one[0] + other[0]


def scattered(x, _mesh):
    own = torch.empty(2, 4)
    torch.distributed.scatter(own, [x * 5])
    return own + 1


def reduced(x, _mesh):
    y = x * 2
    torch.distributed.broadcast(y, 0, async_op=True).wait()
    torch.distributed.barrier()
    torch.distributed.all_reduce(y)
    return y + 1


def scattered_sum(x, _mesh):
    own = torch.empty(2, 4)
    torch.distributed.reduce_scatter_tensor(own, x * 2)
    return own + 1


def gathered_object(x, _mesh):
    objects = [None]
    torch.distributed.all_gather_object(objects, {"factor": 3})
    return x * objects[0]["factor"]


def broadcast_objects(x, _mesh):
    objects = [5]
    torch.distributed.broadcast_object_list(objects, 0)
    return x * objects[0]


USES = {
    "from_local": lambda x, mesh: (
        distributed.DTensor.from_local(x * 2, mesh, [distributed.Replicate()]).sum(-1).to_local()
    ),
    "full_tensor": lambda x, mesh: replicated(x, mesh).relu().full_tensor(),
    "redistribute": lambda x, mesh: replicated(x, mesh).redistribute(mesh, [distributed.Shard(0)]).add(1).to_local(),
    "factory": lambda x, mesh: (
        replicated(x, mesh) + distributed.ones(2, 4, device_mesh=mesh, placements=[distributed.Replicate()])
    ).to_local(),
    "output": lambda x, mesh: replicated(x, mesh) * 3,
    "sharded": lambda x, mesh: (distributed.distribute_tensor(x, mesh, [distributed.Shard(0)]) * 2).to_local(),
    "gathered": gathered,
    "scattered": scattered,
    "reduced": reduced,
    "scattered sum": scattered_sum,
    "gathered object": gathered_object,
    "broadcast objects": broadcast_objects,
    "functional sum": lambda x, mesh: functional.all_reduce(x * 2, "sum", mesh) + 1,
    "functional gathering": lambda x, mesh: functional.all_gather_tensor(x * 2, 0, mesh) + 1,
    "functional scattering": lambda x, mesh: functional.reduce_scatter_tensor(x * 2, "sum", 0, mesh) + 1,
    "written": write_to_it,
    "written inside": write_to_what_it_holds,
}


def whole(output):
    return output.full_tensor() if isinstance(output, distributed.DTensor) else output


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", USES)
def test_distributed_tensors_are_recorded(name, mesh):
    x = torch.rand(2, 4)
    plain = whole(USES[name](x, mesh))
    found = validate(Function(lambda x: USES[name](x, mesh)), (x,))
    assert found.verdict.status is Status.PASSED
    assert torch.equal(whole(USES[name](x, mesh)), plain)


def test_a_distributed_tensor_is_an_input(mesh):
    found = validate(Function(lambda x: (x * 2).to_local()), (replicated(torch.rand(2, 4), mesh),))
    assert found.verdict.status is Status.PASSED


def test_a_collective_writes_what_later_operations_read(mesh):
    history = validate(Function(lambda x: gathered(x, mesh)), (torch.rand(2, 4),)).history
    assert [label[:5] for label in history.ancestors("output_1")].count("mul_1") == 1
    assert [label[:5] for label in history.ancestors("output_1")].count("mul_2") == 1


def column_and_row(mesh):
    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    return parallel.parallelize_module(Perceptron(), mesh, plan)


def distributed_module(mesh):
    return distributed.distribute_module(
        Perceptron(),
        mesh,
        input_fn=lambda _, inputs, mesh: (replicated(inputs[0], mesh),),
        output_fn=lambda _, output, __: output.to_local(),
    )


@pytest.mark.parametrize("build", [column_and_row, distributed_module])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_modules_with_distributed_parameters(build, with_gradients, mesh):
    model, x = build(mesh).requires_grad_(with_gradients), torch.rand(2, 4)
    plain, weight = model(x), model.up.weight
    found = validate(model, (x,))
    assert found.verdict.status is Status.PASSED
    assert found.history["linear_1"].num_param_tensors == 2
    assert model.up.weight is weight
    assert torch.equal(model(x), plain)


def test_a_tensor_in_a_gathered_object_is_not_shown(mesh):
    def gathers(x):
        objects = [None]
        torch.distributed.all_gather_object(objects, x * 2)
        return x + objects[0]

    assert mesh is not None
    verdict = validate(Function(gathers), (torch.rand(2, 4),)).verdict
    assert verdict.status is Status.UNPROVEN
    assert "it uses a constant made after __reduce_ex__ handed" in verdict.words


def fully_sharded(mesh, **options):
    model = Perceptron()
    fsdp.fully_shard(model.up, mesh=mesh, **options)
    fsdp.fully_shard(model.down, mesh=mesh, **options)
    return fsdp.fully_shard(model, mesh=mesh, **options)


SHARDED = {
    "each layer": fully_sharded,
    "the whole": lambda mesh: fsdp.fully_shard(Perceptron(), mesh=mesh),
    "kept whole": lambda mesh: fully_sharded(mesh, reshard_after_forward=False),
    "half precision": lambda mesh: fully_sharded(mesh, mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "half precision, the whole": lambda mesh: fsdp.fully_shard(
        Perceptron(), mesh=mesh, mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    ),
}
BEFORE = {
    "the first call": lambda model, x: None,
    "a later call": lambda model, x: model(x),
    "after a training step": lambda model, x: model(x).sum().backward(),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("build", SHARDED.values(), ids=SHARDED)
def test_fully_sharded_modules_are_recorded_and_left_as_they_were(build, before, mesh):
    x = torch.rand(2, 4)
    torch.manual_seed(1)
    model = build(mesh)
    before(model, x)
    found = validate(model, (x,))
    assert found.verdict.status is Status.PASSED
    torch.manual_seed(1)
    other = build(mesh)
    assert torch.equal(model(x), other(x))


def test_sharded_parameters_are_parents_of_what_is_computed(mesh):
    model, x = fully_sharded(mesh), torch.rand(2, 4)
    model(x)
    history = validate(model, (x,)).history
    reached = {name for label in history.ancestors("output_1") for name in history[label].parent_param_addresses}
    assert reached == {"up.weight", "up.bias", "down.weight", "down.bias"}


class FinishedWork(torch.distributed.Work):
    """What a collective returns that is never waited for in C++."""


@pytest.mark.parametrize(("device", "waits_again"), [("cpu", False), ("meta", True)])
def test_work_on_the_cpu_alone_is_waited_for_once(device, waits_again, mesh, monkeypatch):
    """Elsewhere a wait orders the stream that waits."""
    waits = []
    monkeypatch.setattr(torch.distributed.Work, "wait", lambda work: waits.append(work) or True)
    monkeypatch.setattr(torch.distributed.ProcessGroup, "allreduce", lambda *_: FinishedWork())

    def forward(x):
        work = torch.distributed.all_reduce(x * 2, async_op=True)
        assert waits == [work]
        assert work.wait()
        return x + 1

    assert mesh is not None
    log_forward_pass(Function(forward), torch.ones(2, device=device))
    assert len(waits) == 1 + waits_again


def data_parallel(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return nn.parallel.DistributedDataParallel(model, **options)


@pytest.mark.filterwarnings("ignore:You passed find_unused_parameters")
@pytest.mark.parametrize("options", [{}, {"static_graph": True, "find_unused_parameters": True}])
@pytest.mark.parametrize("before", ["nothing", "a backward pass", "a backward pass, then evaluation"])
@pytest.mark.usefixtures("mesh")
def test_data_parallel_modules_with_buffers(options, before):
    """PyTorch broadcasts buffers past Python, and lays out gradients anew in the first pass after a backward one."""
    model, x = data_parallel(**options), torch.randn(3, 4)
    if before != "nothing":
        model(x).sum().backward()
    if before.endswith("evaluation"):
        model.eval()
    assert validate(model, (x,)).verdict.status is Status.PASSED


class Unseen(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return self.fc(x) + 1


@pytest.mark.usefixtures("mesh")
def test_what_a_data_parallel_module_computes_unseen_is_missed():
    verdict = validate(nn.parallel.DistributedDataParallel(Unseen()), (torch.randn(3, 4),)).verdict
    assert verdict.status is Status.FAILED
    assert "no recorded operation did it" in verdict.words
