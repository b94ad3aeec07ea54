"""One module of a model, with what it reads and what reads it."""

from __future__ import annotations

import dataclasses

from pytest_torchlens.draw.options import OptionError
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.surroundings import Path
from pytest_torchlens.draw.surroundings import Surroundings
from pytest_torchlens.records import address_of
from pytest_torchlens.records import nearest


def focused(scene: Scene, surroundings: Surroundings, focus: str) -> tuple[Scene, frozenset[str]]:
    """Return the part of a scene that is in a module or beside it, and the labels of what is beside it.

    Parameters
    ----------
    scene
        All of it.
    surroundings
        Its module calls; paths are cut to what is inside the module.
    focus
        Address of the module, or one call of it (``"cell:2"``).

    Raises
    ------
    OptionError
        If no such module was called.
    """
    known = {module.address for module in scene.history.modules}
    names = {
        focus,
        *(call for path in surroundings.paths.values() for call in path if address_of(call, known) == focus),
    }
    cut = {label: _from(names, path) for label, path in surroundings.paths.items()}
    if not any(cut.values()):
        calls = {
            name for path in surroundings.paths.values() for call in path for name in (call, address_of(call, known))
        }
        raise OptionError(f"focus is {focus!r}, and no such module was called; {nearest(focus, calls)}")
    flows = tuple(flow for flow in scene.flows if cut[flow.tail] or cut[flow.head])
    near = {label for flow in flows for label in (flow.tail, flow.head)}
    operations = tuple(op for op in scene.operations if cut[op.label] or op.label in near)
    surroundings.paths = cut
    stubs = frozenset(op.label for op in operations if not cut[op.label])
    return dataclasses.replace(scene, operations=operations, flows=flows), stubs


def _from(names: set[str], path: Path) -> Path:
    return next((path[place:] for place, call in enumerate(path) if call in names), ())
