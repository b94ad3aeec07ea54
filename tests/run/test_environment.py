from __future__ import annotations

import platform

import torch

from pytest_torchlens.records import Environment
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.run import find_environment


def test_it_names_what_can_change_a_number():
    found = find_environment()
    assert found.python == platform.python_version()
    assert found.torch == torch.__version__
    assert found.packages["pytest"]
    assert found.packages["oneDNN"] in torch.__config__.show()
    assert f"BLAS_INFO={found.packages['BLAS']}" in torch.__config__.show()
    assert found.num_threads == torch.get_num_threads()
    assert found.cpu_capability
    assert found.settings["default_dtype"] == "torch.float32"
    assert from_json(to_json(found), Environment) == found
