"""`DTensor` in one process: sharded tensors, modules and parallel layers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

distributed = pytest.importorskip("torch.distributed.tensor")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")


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
    "written": write_to_it,
    "written inside": write_to_what_it_holds,
}


def whole(output):
    return output.full_tensor() if isinstance(output, distributed.DTensor) else output


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
