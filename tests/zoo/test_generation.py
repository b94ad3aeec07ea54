from __future__ import annotations

import pytest
import torch

from pytest_torchlens.run import RunOptions
from pytest_torchlens.run import run_case
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo.generation import GENERATING
from pytest_torchlens.zoo.generation import NEW_TOKENS
from pytest_torchlens.zoo.generation import STRATEGIES

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
ZOO = "transformers_generate"


def test_every_family_generates_in_every_way(zoo: Zoo):
    assert set(zoo.names) == {f"{name}_{strategy}" for name in GENERATING for strategy in STRATEGIES}
    assert zoo.case("kosmos-2_beam").family == "kosmos-2"
    assert not zoo.unused_globs()


@pytest.mark.parametrize(
    ("name", "given"),
    [("gpt2_sample", 16), ("t5_greedy", 1), ("whisper_beam", 1), ("llava_greedy", 32), ("mamba_beam", 16)],
)
def test_a_model_adds_tokens_to_what_it_is_given(zoo: Zoo, name: str, given: int):
    case = zoo.case(name)
    generation = case.build()
    with torch.no_grad():
        sequences, *logits = generation(**case.make_inputs(generation).kwargs)
    assert sequences.shape == (1, given + NEW_TOKENS)
    assert len(logits) == NEW_TOKENS
    assert all(scores.shape[-1] == 128 for scores in logits)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_generation_validates(zoo: Zoo, strategy: str):
    report = run_case(zoo.case(f"gpt2_{strategy}"), RunOptions(validate=True)).report
    assert report.error is None
    assert report.verdict is not None
    assert report.verdict.status.ok, report.verdict.words
