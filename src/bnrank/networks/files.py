"""Networks in files: their arguments and parameters, state dicts, and modules built by code."""

import contextlib
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from bnrank._core import sources, store, validation
from bnrank.networks.convolutional import CircularConvolutional, Convolutional, LinearConvolutional
from bnrank.networks.mlp import MLP, from_layers, make
from bnrank.networks.reading.matrices import Source, listing
from bnrank.networks.stack import ResNetDiagonal, ResNetFree, ResNetIdentity, Stack

_STACKS = (ResNetIdentity, ResNetDiagonal, ResNetFree, Convolutional, LinearConvolutional, CircularConvolutional)
MAX_CODE = 1 << 24  # bytes of a Python file
MAX_ERROR = 500  # letters of another error
_IMPORTS = threading.RLock()  # of sys.path and sys.modules, which belong to the process
_ELEMENTWISE = (
    "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LogSigmoid Mish ReLU6 SELU Sigmoid SiLU Softplus "
    "Softshrink Softsign Tanh Tanhshrink"
)
_ACTIVATIONS = {"relu": 0.0, "leaky_relu": 0.01, "linear": 1.0}
_ACTIVATIONS |= {name.lower(): getattr(nn, name) for name in _ELEMENTWISE.split()}
_EXPECTED = '"relu", "linear", a slope, or an elementwise function of torch.nn.functional such as "tanh"'
_KINDS: dict[str, Callable[..., MLP | Stack]] = {"MLP": make, **{kind.__name__: kind for kind in _STACKS}}


def blueprint(net: Any) -> dict[str, Any] | None:
    """Return the arguments from which `build` makes a network like this one, or None.

    None for any other module than an MLP or a residual or convolutional network of `bnrank.networks`, and for a
    network with parts that were changed after it was built.
    """
    if not isinstance(net, MLP) and type(net) not in _STACKS:
        return None
    kind = "MLP" if isinstance(net, MLP) else type(net).__name__
    plan = {"kind": kind, **net.settings, "init": net.init, "seed": net.seed}
    return plan if isinstance(net, MLP) or _parts(net) == _parts(build(plan)) else None


def build(
    plan: Mapping[str, Any], dtype: torch.dtype = torch.float32, stored: Mapping[str, Tensor] | None = None
) -> MLP | Stack:
    """Return the network of a blueprint, drawn from its seed.

    Parameters
    ----------
    plan : mapping
        The blueprint.
    dtype : torch.dtype
        Precision of the parameters.
    stored : mapping, optional
        The parameters of a file; a blueprint of a larger network is refused before anything is allocated.

    Raises
    ------
    TypeError, ValueError, KeyError
        If it is not a blueprint.

    Examples
    --------
    >>> from bnrank.networks import ResNetFree
    >>> build(blueprint(ResNetFree(3, width=4, seed=7))).seed
    7
    """
    arguments = dict(plan)
    kind = _KINDS[arguments.pop("kind")]
    if stored is None:
        return kind(**arguments, dtype=dtype)
    layers = max((len(value) for value in arguments.values() if isinstance(value, list | str)), default=0)
    validation.expect(layers <= 1000 + 2 * len(stored), "layers", f"{layers}", f"those of {len(stored)} tensors")
    with validation.at_most((1 << 20) + sum(2 * tensor.numel() + 1024 for tensor in stored.values())):
        return kind(**arguments, dtype=dtype)


def _parts(net: nn.Module) -> list[tuple[str, str, str, str]]:
    """Return what of a network its arguments decide: name, class, settings and shapes of every part."""
    return [
        (name, type(part).__name__, part.extra_repr(), str([tuple(p.shape) for p in part.parameters(recurse=False)]))
        for name, part in net.named_modules()
    ]


def save(net: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a network to a safetensors file and return its path.

    The file is written completely or not at all.

    Parameters
    ----------
    net : MLP, or a residual or convolutional network of `bnrank.networks`
        The network.
    path : path
        A name ending in ``.safetensors``. An existing file is replaced.

    Raises
    ------
    TypeError, ValueError
        If ``net`` is not such a network, or the path cannot be written to.

    Examples
    --------
    >>> import tempfile, pathlib, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(bnrank.MLP([3, 5, 2]), pathlib.Path(folder) / "net.safetensors")
    ...     load(path).widths
    [3, 5, 2]
    """
    return write(net, path, "net")


def write(net: nn.Module, path: str | os.PathLike[str], name: str) -> Path:
    """Write a network as :func:`save` does; ``name`` is the argument in errors."""
    plan = blueprint(net)
    if plan is None:
        raise TypeError(
            f"{name}: got {type(net).__name__}, expected a bnrank.MLP or one of {', '.join(list(_KINDS)[1:])}, "
            "with the parts it was built with; save other modules "
            'with safetensors.torch.save_file(model.state_dict(), "model.safetensors")'
        )
    for key, value in net.state_dict().items():
        validation.dense(value, f"{name}: {key}")
    return store.save(path, net.state_dict(), {"plan": plan}, "network")


def load(
    path: str | os.PathLike[str], activation: str | float | None = None, order: Sequence[str] | None = None
) -> nn.Module:
    """Return a network from a file of :func:`save`, or from any safetensors state dict of a chain of linear layers.

    Parameters
    ----------
    path : path
        A safetensors file. Pickles (.pt, .pth, ...) are refused, since opening one can run code.
    activation : str or float, optional
        The activation between the layers of a foreign state dict, which does not say it: "relu", "linear", the slope of
        a leaky ReLU, or an elementwise function of ``torch.nn.functional`` by its name, such as "tanh". A saved network
        knows its own; another one is an error.
    order : sequence of str, optional
        Names of the weights of a foreign state dict, first layer first. Needed where the names contain no numbers
        to sort by.

    Returns
    -------
    MLP, or the class that was saved; nn.Sequential where the activation has no slope
        In the precision of the file.

    Raises
    ------
    ValueError
        If the file is missing, a pickle, damaged, or not a chain of 2-D weights; the message names the file. If the
        activation is not known, or another one.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = bnrank.networks.save(bnrank.MLP([3, 5, 2]), f"{folder}/net.safetensors")
    ...     bnrank.networks.load(path).widths
    [3, 5, 2]
    """
    if order is not None:
        order = validation.sequence(order, "order", "a sequence of names")
    stored = store.read(path)
    if not stored.kind:
        return chained(stored.tensors, activation, f"path: {stored.path}", order)[0]
    validation.expect(order is None, "order", f"{order} for {stored.path}", "none: it has its own")
    stored = store.load(path, "network")
    try:
        plan = stored.about["plan"]
        net = build(plan, _one_dtype(f"path: {stored.path}", stored.tensors), stored.tensors)
        net.load_state_dict(stored.tensors)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"path: {stored.path} has tensors that do not fit the plan of its network: {error}") from error
    expect_own(net, activation)
    return net


def runnable(net: object, activation: str | float | None = None, name: str = "net") -> tuple[nn.Module, dict[str, str]]:
    """Return a module as it is, and of a state dict or a file the network, with the names that its layers have there.

    A network or run that bnrank saved is opened; other tensors are a chain of linear layers with the activation.

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or the activation is not known, or another one.

    Examples
    --------
    >>> state = {"body.0.weight": torch.eye(2), "body.2.weight": torch.ones(1, 2)}
    >>> runnable(state, "relu")[1]
    {'layers.0': 'body.0', 'layers.1': 'body.2'}
    """
    if isinstance(net, str | os.PathLike) and Path(net).suffix == ".safetensors" and store.read(net, name=name).kind:
        return load(net, activation), {}
    if isinstance(net, nn.Module):
        expect_own(net, activation)
        return net, {}
    with listing(cast(Source, net), name) as held:
        tensors = {stored.name: stored.load() for stored in held.records if stored.is_tensor}
    return chained(tensors, activation, f"{name}: {held.title}")


def expect_own(net: nn.Module, activation: str | float | None) -> None:
    """Raise ValueError if an activation is given for a network that has another one, or one that is not known."""
    own = getattr(net, "slope", getattr(net, "settings", {}).get("slope"))
    if activation is not None and (own is None or _activation(activation) != own):
        known = f"its own, slope {own:g}" if isinstance(own, float | int) else "none, as its code says it"
        raise ValueError(f"activation: got {activation!r} for a {type(net).__name__}, expected {known}")


def _activation(value: object) -> float | type[nn.Module]:
    """Return the slope of an activation, or the class of one without a slope."""
    if not isinstance(value, str):
        return validation.slope(value, "activation", linear=True)
    if value not in _ACTIVATIONS:
        raise ValueError(f"activation: got {value!r}, expected {_EXPECTED}{validation.suggest(value, _ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def chained(
    tensors: Mapping[str, Tensor], activation: object, source: str, order: Sequence[str] | None = None
) -> tuple[nn.Module, dict[str, str]]:
    """Return the chain of the linear layers among tensors, and the names that its layers have there.

    ``source`` begins the messages of errors: the argument and what it is.
    """
    weights = [name for name, t in tensors.items() if t.ndim == 2 and re.fullmatch(r"(.*\.)?weight", name)]
    known = {*weights, *(_bias(name) for name in weights)}
    other = [f"{name} {tuple(t.shape)}" for name, t in tensors.items() if name not in known]
    if other or not weights:
        also = f", but it also has {validation.listed(other)}" if other else ""
        raise ValueError(
            f"{source} is not a plain chain of linear layers, expected 2-D weights and their biases only{also}. "
            'Read other modules with bnrank.load(path, bnrank.networks.load_module("file.py:function"))'
        )
    if order is not None:
        expected = f"the weights of {source.partition(': ')[2]} in some order: {sorted(weights)}"
        validation.expect(sorted(map(str, order)) == sorted(weights), "order", f"{list(order)}", expected)
    elif len({re.sub(r"\d+", "", name) for name in weights}) > 1:
        raise ValueError(
            f"{source}: the names {', '.join(sorted(weights))} do not say which layer comes first; "
            "give them in order with order=[...]"
        )
    names = order or sorted(weights, key=lambda name: [(len(n), n) for n in re.findall(r"0*(\d+)", name)])
    biases = [tensors[_bias(name)] for name in names if _bias(name) in tensors]
    dtype, between = _one_dtype(source, tensors), 0.0 if activation is None else _activation(activation)
    try:
        chain = from_layers([tensors[name] for name in names], biases, between if isinstance(between, float) else 0.0)
    except ValueError as error:
        raise ValueError(f"{source}, {', '.join(names)}: {error}; give the names in order with order=[...]") from error
    if activation is None and len(names) > 1:
        got = f"none, but {source.partition(': ')[2]} does not say the activation between its layers"
        raise ValueError(f"activation: got {got}; expected {_EXPECTED}")
    chain.init = "he"  # where its parameters are drawn again
    net: nn.Module = chain.to(dtype)
    own = [f"layers.{i}" for i in range(len(names))]
    if not isinstance(between, float):
        net = nn.Sequential(*[part for layer in chain.layers for part in (layer, between())][:-1])
        own = [str(2 * i) for i in range(len(names))]
    return net, dict(zip(own, (name.removesuffix(".weight") for name in names), strict=True))


def _bias(weight: str) -> str:
    return f"{weight.removesuffix('weight')}bias"


def _one_dtype(source: str, tensors: Mapping[str, Tensor]) -> torch.dtype:
    dtypes = {t.dtype for t in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise ValueError(f"{source} has dtypes {', '.join(sorted(map(str, dtypes)))}, expected one floating-point one")
    return dtypes.pop()


def load_module(spec: str) -> nn.Module:
    """Return a module built by code; `bnrank.load(path, net)` takes its weights from a safetensors file.

    Parameters
    ----------
    spec : str
        ``"path/to/file.py:function"`` or ``"package.module:function"``, a function without arguments that returns
        a ``torch.nn.Module``. Its code is run, so it must be trusted.

    Returns
    -------
    torch.nn.Module
        The module.

    Raises
    ------
    TypeError, ValueError
        If the file, module or function is not there, fails, or returns something else.

    Examples
    --------
    >>> load_module("torch.nn:Identity")
    Identity()
    """
    function = find_function(spec)
    try:
        module = function()
    except (Exception, SystemExit) as error:
        raise ValueError(f"spec: {spec!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"spec: {spec!r} returned {validation.describe(module)}, expected a torch.nn.Module")
    return module


def fill(net: nn.Module, stored: store.Stored, name: str, whose: str) -> None:
    """Load the tensors of a file into a module in place.

    Parameters
    ----------
    net : torch.nn.Module
        The module.
    stored : Stored
        The file with its state dict.
    name, whose : str
        The argument, and the module, in errors.

    Raises
    ------
    ValueError
        If they do not fit; the message has the differences in names and shapes, with an example of each kind.
    """
    try:
        net.load_state_dict(stored.tensors)
    except RuntimeError as error:
        own = {key: tuple(value.shape) for key, value in net.state_dict().items() if isinstance(value, Tensor)}
        given = {key: tuple(value.shape) for key, value in stored.tensors.items()}
        differences = {
            "missing": [f"{key} {shape}" for key, shape in own.items() if key not in given],
            "unexpected": [f"{key} {shape}" for key, shape in given.items() if key not in own],
            "of another shape": [f"{key} {given[key]}, not {s}" for key, s in own.items() if given.get(key, s) != s],
        }
        lines = [f"{len(of)} {kind}, such as {of[0]}" for kind, of in differences.items() if of]
        text = "; ".join(lines) or str(error)[:MAX_ERROR]
        for longer, shorter, where in ((given, own, "the file"), (own, given, "the module")):
            prefix = min(longer, default="").removesuffix(min(shorter, default=""))
            if prefix and {f"{prefix}{key}" for key in shorter} == set(longer):
                text += f". The names of {where} begin with {prefix!r}; without it they are equal"
        raise ValueError(f"{name}: {stored.path} does not fit {whose}: {text}") from error


def find_function(spec: str) -> Callable[..., Any]:
    """Return a function of a file or a module: see :func:`load_module`."""
    expected = "'file.py:function' or 'package.module:function'"
    if not isinstance(spec, str):
        raise TypeError(f"spec: got {validation.describe(spec)}, expected {expected}")
    source, colon, name = spec.rpartition(":")
    validation.expect(colon and source and name, "spec", f"{spec!r}", expected)
    if source.endswith(".py") and not Path(source).is_file():
        raise ValueError(f"spec: got {spec!r}, expected a file that exists, {source} does not")
    try:
        namespace = _run_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"spec: got {spec!r}, but importing {source} raised {type(error).__name__}: {error}"
        ) from error
    function = getattr(namespace, name, None)
    if not callable(function):
        near = validation.suggest(name, [key for key, value in vars(namespace).items() if callable(value)])
        raise ValueError(f"spec: got {spec!r}, but {source} has no function {name!r}{near}")
    return function


def _run_file(path: Path) -> ModuleType:
    """Return a Python file as a module under a name of its own, by which dataclasses and pickles find it.

    While it runs, its folder is the first place from which modules are imported. Those imported from there are removed
    from ``sys.modules`` again, so that a file of another folder finds its own neighbors.
    """
    code = compile(sources.read(path, "spec", MAX_CODE), str(path), "exec")
    name, folder = f"bnrank_user_{path.stem}", str(path.parent.resolve())
    with _IMPORTS:
        while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
            name += "_"
        before = set(sys.modules)
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        sys.path.insert(0, folder)
        try:
            exec(code, vars(module))
        except BaseException:
            sys.modules.pop(name, None)
            raise
        finally:
            with contextlib.suppress(ValueError):  # the file may have removed it
                sys.path.remove(folder)
            added = set(sys.modules) - before
            for neighbor in [key for key in added if _place(key.partition(".")[0]) == folder]:
                del sys.modules[neighbor]
    return module


def _place(name: str) -> str:
    """Return the folder from which a module was imported, empty where none is known."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    location = None if spec is None else next(iter(spec.submodule_search_locations or [spec.origin]))
    return "" if location is None else str(Path(location).parent)
