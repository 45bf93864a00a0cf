"""A pretended GPU: a device of its own whose tensors are computed by the processor, under the rules of a real GPU.

Fake tensors of torch have no values, so that a function stops at its first check of the data, and a leaf that requires
gradients on a fake CUDA device ends the process where torch is built without CUDA. Tensors of the pretended device have
values and gradients. An operation that mixes devices raises where it would raise under FakeTensorMode with CUDA tensors
(``tests/test_devices.py`` compares), and so do a few operations that exist for CPU tensors alone. Reads by the host are
counted.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from bnrank._core import identity

NAME = "pretended"
AVAILABLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
"""Whether this version of torch can register a device in Python."""

aten = torch.ops.aten
COPIES = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::is_nonzero"}
"""Operations whose answer, or its shape, must be known to the host."""
UNIQUE = "aten::unique", "aten::_unique", "aten::unique2"
PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot"}

copies = 0
"""How often the host has read values of the device so far."""


def setup() -> torch.device:
    """Register the device, once in a process, and return it."""
    if not hasattr(torch, NAME):
        dummy = backend_registration._DummyBackendModule

        class Backend(dummy):  # type: ignore[misc,valid-type]
            def synchronize(self, device: Any = None) -> None:
                pass

            def get_rng_state(self, device: Any = 0) -> Tensor:
                return torch.zeros(16, dtype=torch.uint8)

            def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
                pass

        backend_registration._setup_privateuseone_for_python_backend(NAME, Backend())
        for name in ("empty.memory_format", "empty_strided"):  # of threads without the mode below, as in backward
            _LIBRARY.impl(name, functools.partial(_made, getattr(aten, name.split(".")[0])), "PrivateUse1")
        _LIBRARY.impl("_copy_from", _copied, "PrivateUse1")
    return torch.device(NAME, 0)


_LIBRARY = torch.library.Library("aten", "IMPL")


def _made(factory: Any, *args: Any, device: Any = None, **kwargs: Any) -> "Pretended":
    return Pretended(factory(*args, **kwargs, device="cpu"))


def _copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _raw(target).copy_(_raw(source))
    return target


class Pretended(Tensor):
    """A tensor of the pretended device; ``raw`` has its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Pretended":
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=raw.requires_grad,
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.raw})"

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {NAME} device type tensor to numpy")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.raw = value.raw if isinstance(value, Pretended) else value

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = type(self)(self.raw.detach().clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                made._is_param = True  # by which torch recognizes parameters that are instances of other classes
            memo[id(self)] = made
        return memo[id(self)]


def _mixed(func: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> bool:
    """Whether a real GPU refuses these tensors together."""
    name = func.name().partition(".")[0]
    if name in ("aten::copy_", "aten::_to_copy", "aten::set_"):
        return False
    if name in ("aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        first = isinstance(args[0], Pretended)
        given = [v for v in args[1] if isinstance(v, Tensor)]
        values = [v for v in args[2:3] if isinstance(v, Tensor)]
        return any(isinstance(v, Pretended) and not first for v in given) or any(
            isinstance(v, Pretended) != first and (v.ndim > 0 or not first) for v in values
        )
    pointwise = torch.Tag.pointwise in func.tags or name in ("aten::fill_", "aten::fill")
    return any(v.ndim > 0 or not pointwise for v in leaves if not isinstance(v, Pretended))


def _refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor], there: bool) -> None:
    name = func.name()
    if any(isinstance(v, Pretended) for v in leaves) and _mixed(func, args, leaves):
        where = ", ".join(str(v.device) for v in leaves)
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {where}")
    if there and (generator := kwargs.get("generator")) is not None and generator.device.type == "cpu":
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' in {name}")
    if there and name.partition(".")[0] in PRODUCTS and not leaves[0].dtype.is_floating_point:
        raise RuntimeError(f"{name} not implemented for '{leaves[0].dtype}' on a GPU")
    if there and name == "aten::linalg_lstsq" and kwargs.get("driver", "gels") not in (None, "gels"):
        raise RuntimeError("linalg.lstsq: only the driver gels exists on a GPU")
    if there and name.startswith("aten::histogram."):
        raise RuntimeError(f"{name} does not exist on a GPU")


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, Pretended) else value


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation of torch, on the values of the tensors."""
    global copies
    leaves = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
    device = kwargs.get("device")
    on = any(isinstance(v, Pretended) for v in leaves)
    there = torch.device(device).type == NAME if device is not None else on
    _refuse(func, args, kwargs, leaves, there)
    name = func.name()
    onto_host = name == "aten::copy_" and not isinstance(args[0], Pretended)
    masks = name.startswith("aten::index") and any(
        isinstance(v, Pretended) and v.dtype == torch.bool for v in tree_leaves(args[1:2])
    )
    if on and (name.partition(".")[0] in COPIES or name.startswith(UNIQUE) or onto_host or not there or masks):
        copies += 1
    if device is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    raw_args, raw_kwargs = tree_map(_raw, (args, kwargs))
    run = aten.zeros.default if name == "aten::_efficientzerotensor" else func
    with _disable_current_modes():
        out = run(*raw_args, **raw_kwargs)
    given = {id(_raw(v)): v for v in leaves}

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in given:
            return given[id(value)]
        return Pretended(value) if there else value

    out = tree_map(wrap, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if on and there else out


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


@contextlib.contextmanager
def gpu() -> Iterator[torch.device]:
    """Provide the pretended GPU; tensors can be made on it inside."""
    device = setup()
    with _Mode(), mock.patch.object(identity, "tensor", _identified):
        yield device


_tensor = identity.tensor


def _identified(value: Tensor) -> str:
    """Return the identity of a tensor; the library rightly refuses subclasses, and tensors on a real GPU are none."""
    return _tensor(value.detach().cpu() if isinstance(value, Pretended) else value)
