"""Makes the files of a reproduction: ``repro.py``, which needs torch alone, and ``tensors.safetensors`` beside it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_torchlens.run.repro.gap import Form
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import Way
from pytest_torchlens.run.repro.statements import WIDTH

SCRIPT, TENSORS = "repro.py", "tensors.safetensors"
_EXPECTED = "expected"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.bool: "BOOL",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


# -- the function ------------------------------------------------------------------------------------------------------


def program_text(program: Program) -> str:
    """Return the imports, the settings and the function ``compute`` of a program: all that a trial runs."""
    head, functions = _parts(program)
    if program.way is not None:
        functions = f"{functions}\n\n\n{_BOTH}"
    return "\n".join(["import torch", "", head, "", "", functions, ""])


_BOTH = """def compute(**tensors):
    one, two = (way(**{name: tensor.clone() for name, tensor in tensors.items()}) for way in (plain, other))
    one, two = (results if isinstance(results, tuple) else (results,) for results in (one, two))
    return *[result.contiguous() for result in one], *[result.contiguous() for result in two]"""


def _parts(program: Program) -> tuple[str, str]:
    """Return the lines that set what holds for the process, and the functions."""
    if program.way is not None:
        return "\n".join(settings_lines(program.way.settings(program))), program.way.functions(program)
    return "\n".join(settings_lines(program.settings)), definition_text(program, "compute")


def definition_text(
    program: Program, name: str, before: Sequence[str] = (), layouts: Sequence[str] | None = None
) -> str:
    """Return the function of a program's calls.

    Parameters
    ----------
    program
        The program.
    name
        Of the function.
    before
        Lines at its beginning.
    layouts
        Lines that give the inputs what the file does not hold; None for those of the program's inputs.
    """
    *first, last = program.statements
    returns = program.results == (last.target,)
    made = layout_lines(program, program.inputs) if layouts is None else layouts
    body = [*before, *made, *(line for statement in first for line in statement.lines())]
    body += last.lines(returns=returns) + ([] if returns else [f"return {', '.join(program.results)}"])
    lines = [*_decorators(program.settings), *signature(name, program.inputs), *(f"    {line}" for line in body)]
    return "\n".join(lines)


def signature(name: str, parameters: Iterable[str]) -> list[str]:
    """Return the first lines of a function."""
    names = ", ".join(parameters)
    return [f"def {name}({names}):"] if len(names) <= WIDTH else [f"def {name}(", f"    {names}", "):"]


def settings_lines(words: Mapping[str, str], *, defaults: bool = True) -> Iterator[str]:
    """Yield the lines that set the settings of the process; with `defaults` only those that are not the default."""
    for name, (default, line) in _SETTINGS.items():
        word = words.get(name, "unknown")
        if word not in (default if defaults else "unknown", "unknown"):
            yield line.format(word, on=word == "on")


_SETTINGS = {
    "threads": ("", "torch.set_num_threads({})"),
    "default dtype": ("float32", "torch.set_default_dtype(torch.{})"),
    "default device": ("cpu", 'torch.set_default_device("{}")'),
    "deterministic algorithms": ("off", "torch.use_deterministic_algorithms({on})"),
    "float32 matmul precision": ("highest", 'torch.set_float32_matmul_precision("{}")'),
    "attention by math": ("on", "torch.backends.cuda.enable_math_sdp({on})"),
    "attention by flash": ("on", "torch.backends.cuda.enable_flash_sdp({on})"),
    "attention by memory efficient kernel": ("on", "torch.backends.cuda.enable_mem_efficient_sdp({on})"),
    "oneDNN": ("on", "torch.backends.mkldnn.set_flags({on})"),
    "cuDNN": ("on", "torch.backends.cudnn.enabled = {on}"),
    "cuDNN benchmark": ("off", "torch.backends.cudnn.benchmark = {on}"),
    "cuDNN deterministic": ("off", "torch.backends.cudnn.deterministic = {on}"),
    "cuDNN TF32": ("on", "torch.backends.cudnn.allow_tf32 = {on}"),
}


def _decorators(words: Mapping[str, str]) -> Iterator[str]:
    casts = words.get("autocast", "off")
    for cast in casts.split(", ") if casts != "off" else ():
        kind, _, dtype = cast.partition(" ")
        yield f'@torch.autocast("{kind}", dtype=torch.{dtype})'
    if words.get("inference mode") == "on":
        yield "@torch.inference_mode()"
    elif words.get("gradients") == "off":
        yield "@torch.no_grad()"


def layout_lines(program: Program, inputs: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the lines that give some inputs what the file does not hold: strides, a device, gradients."""
    for name, tensor in inputs.items():
        if tensor.is_complex():
            yield f"{name} = torch.view_as_complex({name})"
        if tensor.numel() == 0:
            yield f"{name} = torch.empty({tuple(tensor.shape)}, dtype={tensor.dtype})"
        one = _unexpanded(tensor)
        if one.dim() == _IMAGE and not one.is_contiguous() and one.is_contiguous(memory_format=torch.channels_last):
            yield f"{name} = {name}.to(memory_format=torch.channels_last)"
        elif not one.is_contiguous() and not _overlaps(one):
            memory = f"torch.empty_strided({tuple(one.shape)}, {one.stride()}, dtype={name}.dtype)"
            yield f"{name} = {memory}.copy_({name})"
        if one.shape != tensor.shape:
            yield f"{name} = {name}.expand({tuple(tensor.shape)})"
        if tensor.device.type != "cpu":
            yield f'{name} = {name}.to("{tensor.device}")'
        if name in program.leaves and program.settings.get("gradients") != "off":
            yield f"{name}.requires_grad_()"


_IMAGE = 4


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return an input as the file has it: contiguous, real, on the CPU, one element where all share memory."""
    plain = _unexpanded(tensor).resolve_conj().resolve_neg()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).cpu().contiguous()


def _unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    for dim in range(tensor.dim()):
        if is_expanded(tensor, dim):
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def is_expanded(tensor: torch.Tensor, dim: int) -> bool:
    """Return whether the elements along a dimension are one in memory."""
    return tensor.stride(dim) == 0 and tensor.shape[dim] > 1


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return whether some elements share memory, as those of `Tensor.unfold` do; the copy is then contiguous."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return reach < tensor.numel()


# -- the whole file ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """What the head of the file says.

    Attributes
    ----------
    title
        What is wrong, in one line.
    environments
        What each environment is, and what it computed.
    origin
        Where the operation comes from: the model, the operation, the line.
    """

    title: str
    environments: tuple[str, ...]
    origin: tuple[str, ...]

    @property
    def text(self) -> str:
        """The docstring's text."""
        environments = "\n".join(self.environments)
        return f"{self.title}\n\n{environments}\n\n{chr(10).join(self.origin)}"


def script_text(program: Program, expected: torch.Tensor | None, gap: Gap, story: Story) -> str:
    """Return the whole file."""
    used = {tensor.dtype for tensor in tensors_of(program, expected, gap).values()}
    names = {dtype: name for dtype, name in _DTYPES.items() if dtype in used}
    dtypes = ", ".join(f'"{name}": {dtype}' for dtype, name in names.items())
    imports = "import json\nimport math\nimport sys\nfrom pathlib import Path\n"
    settings, functions = _parts(program)
    limit = [f"LIMIT = {gap.limit!r}"] if gap.form is Form.VALUES or (gap.form in _WITH_LIMIT and program.way) else []
    constants = [settings, f"DTYPES = {{{dtypes}}}", *limit]
    head = f'"""{story.text}\n"""\n\n{imports}\nimport torch\n'
    main = _main(_MAIN[gap.form], expected) if program.way is None else _ending(program, program.way, expected)
    return f"{head}\n{chr(10).join(filter(None, constants))}\n{_LOAD}\n\n{functions}\n\n\n{main}"


_LOAD = '''

def load(path):
    """Read a safetensors file: the length of the header, the header, the bytes of the tensors."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for name, one in json.loads(data[8:start]).items():
        place = {"count": math.prod(one["shape"]), "offset": start + one["data_offsets"][0]}
        yield name, torch.frombuffer(data, dtype=DTYPES[one["dtype"]], **place).clone().view(one["shape"])
'''
TENSORS_TEXT = f'dict(load(Path(__file__).with_name("{TENSORS}")))'
_VALUES = f"""if __name__ == "__main__":
    tensors = {TENSORS_TEXT}
    expected = WIDE(tensors.pop("expected"))
    got = compute(**tensors).cpu().to(expected.dtype)
    wrong = ~torch.isclose(got, expected, rtol=0, atol=LIMIT, equal_nan=True)
    largest = (got - expected)[wrong].abs().max() if wrong.any() else 0.0
    found = f"{{wrong.sum()}} of {{wrong.numel()}} values differ from the expected by more than {{LIMIT}}"
    print(f"torch {{torch.__version__}}: {{found}}, at most by {{largest:.2g}}")
    sys.exit(int(wrong.any()))
"""
_FORM = f"""if __name__ == "__main__":
    got = compute(**{TENSORS_TEXT})
    got = (tuple(got.shape), got.dtype, got.stride())
    expected = EXPECTED
    print(f"torch {{torch.__version__}}: {{got}}, expected {{expected}}")
    sys.exit(int(got != expected))
"""
_REPEATS = f"""if __name__ == "__main__":
    first, *others = (compute(**{TENSORS_TEXT}) for _ in range(20))
    wrong = sum(not torch.allclose(one, first, rtol=0, atol=0, equal_nan=True) for one in others)
    print(f"torch {{torch.__version__}}: {{wrong}} of {{len(others)}} runs give other values than the first")
    sys.exit(int(wrong > 0))
"""


def _ending(program: Program, way: Way, expected: torch.Tensor | None) -> str:
    return way.ending(program, is_complex=expected is not None and expected.is_complex())


_WITH_LIMIT = (Form.FORM, Form.RAISES)
"""Differences of two ways besides values; the file compares values, too."""
_MAIN = {Form.VALUES: _VALUES, Form.FORM: _FORM, Form.REPEATS: _REPEATS}


def _main(text: str, expected: torch.Tensor | None) -> str:
    if expected is None:
        return text
    form = f"({tuple(expected.shape)}, {expected.dtype}, {expected.stride()})"
    wide = "torch.view_as_complex({}).to(torch.complex128)" if expected.is_complex() else "{}.double()"
    popped = 'tensors.pop("expected")'
    return text.replace(f"WIDE({popped})", wide.format(popped)).replace("EXPECTED", form)


def tensors_of(program: Program, expected: torch.Tensor | None, gap: Gap) -> dict[str, torch.Tensor]:
    """Return the tensors of the file."""
    tensors = {name: stored(tensor) for name, tensor in program.inputs.items() if tensor.numel()}
    has_expected = expected is not None and gap.form is Form.VALUES and program.way is None
    return {**tensors, _EXPECTED: stored(expected)} if expected is not None and has_expected else tensors
