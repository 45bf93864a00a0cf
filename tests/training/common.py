"""Small tasks, and slow, obvious float64 versions of cost and gradient."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import bnrank
from bnrank.tasks import Task
from bnrank.training import Adam, GradientDescent, Limits, Record, Save, SkipPlateau, Solver, Stop

HERE = Path(__file__).parent


def random_task(n=40, d_in=3, d_out=2, loss="mse", seed=0, shape=None):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *(shape or (d_in,)), generator=generator, dtype=torch.float64)
    if loss == "mse":
        target = torch.randn(n, d_out, generator=generator, dtype=torch.float64)
        return Task(x, target)
    labels = torch.randint(d_out, (n,), generator=generator)
    return Task(x, labels, loss="cross_entropy", classes=d_out)


def flat(net):
    """All trainable parameters of a network in a row."""
    return torch.cat([p.detach().flatten() for p in net.parameters() if p.requires_grad])


def put(net, row):
    """A float64 copy of a network with these parameters."""
    net = copy.deepcopy(net).double()
    own = [p for p in net.parameters() if p.requires_grad]
    with torch.no_grad():
        for p, piece in zip(own, row.double().split([p.numel() for p in own]), strict=True):
            p.copy_(piece.view_as(p))
    return net


def cost_of(net, task, batch=None):
    """C(f) of docs/theory/notation.md, with autograd."""
    x, y = (task.x, task.y) if batch is None else (task.x[batch], task.y[batch])
    output = net(x.double())
    if task.loss == "mse":
        return (output - y.double()).square().sum() / len(x)
    return nn.functional.cross_entropy(output, y)


def cost_and_gradient(net, task, row, batch=None, ridge=0.0):
    """C + ridge ||theta||^2 and its gradient at a row of parameters, by autograd in float64."""
    net = put(net, row)
    own = [p for p in net.parameters() if p.requires_grad]
    loss = cost_of(net, task, batch) + ridge * sum(p.square().sum() for p in own)
    gradients = torch.autograd.grad(loss, own)
    return loss.detach(), torch.cat([g.flatten() for g in gradients])


def assert_same_run(a, b, members_a=None, members_b=None):
    """Two runs agree bit by bit in parameters, history and status."""
    pick_a = list(range(a.members)) if members_a is None else members_a
    pick_b = list(range(b.members)) if members_b is None else members_b
    np.testing.assert_array_equal(a.parameters[pick_a].numpy(), b.parameters[pick_b].numpy())
    one, two = a.history.isel(member=pick_a), b.history.isel(member=pick_b)
    steps = max(one.sizes["step"], two.sizes["step"])
    for name, values in one.data_vars.items():
        np.testing.assert_array_equal(_padded(values, steps), _padded(two[name], steps), err_msg=name)
    assert one.status.values.tolist() == two.status.values.tolist()
    for name in ("seed", "ridge"):
        assert one[name].values.tolist() == two[name].values.tolist()


def _padded(values, steps):
    """A run of which all members have stopped has no rows of NaN after."""
    values = np.moveaxis(values.transpose("member", "step", ...).values, 1, 0)
    return np.concatenate([values, np.full((steps - len(values), *values.shape[1:]), np.nan)])


def grouped(**fields):
    """Arguments of train and flow, with the fields of their options given one by one."""

    def taken(kind):
        return {f.name: fields.pop(f.name) for f in dataclasses.fields(kind) if f.name in fields}

    if fields.get("out") is None:
        fields = {k: v for k, v in fields.items() if k not in ("out", "resume", "checkpoint_every")}
    else:
        fields["out"] = Save(**taken(Save))
    for name, kind in (("record", Record), ("limits", Limits)):
        if options := taken(kind):
            fields[name] = kind(**options)
    return fields, taken


def follow(net, task, *args, skip_plateau=False, **fields):
    """bnrank.flow, with the fields of its options given one by one."""
    fields, taken = grouped(**fields)
    solver = Solver(**taken(Solver))  # takes batch_size, which the plateau has as well
    plateau = SkipPlateau(**taken(SkipPlateau)) if skip_plateau else None
    return bnrank.flow(net, task, *args, solver=solver, plateau=plateau, **fields)


def trained(net, task, init=None, **fields):
    """bnrank.train, with the fields of its options given one by one, and an init for each member."""
    fields, taken = grouped(**fields)
    if init is not None:
        count = max([1, *(len(value) for value in (init, *fields.values()) if isinstance(value, list))])
        inits = init if isinstance(init, list) else [init] * max(count, fields.get("members", 1))
        seeds = fields.get("seed", net.seed)
        seeds = seeds if isinstance(seeds, list) else [seeds + i for i in range(len(inits))]
        net = [copy.deepcopy(net).reset(seed, init) for seed, init in zip(seeds, inits, strict=True)]
    if stop := taken(Stop):
        fields["steps"] = Stop(**stop)
    if steps := taken(Adam):
        name = fields.get("optimizer", "adam")
        fields["optimizer"] = (GradientDescent if name == "gd" else Adam)(**steps)
    return bnrank.train(net, task, **fields)


def in_subprocess(script, *arguments, timeout=120, env=None):
    """Run a script of this folder; return what it printed."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def mlp(*widths, **settings):
    return bnrank.MLP(list(widths), **settings)


_QUIET = {"steps": 60, "every": 7}
RUNS = {  # what is killed and resumed
    "adam": {"optimizer": "adam", "schedule": "cosine", "ridge": [0.0, 1e-3, 0.1], **_QUIET},
    "mini-batches": {"optimizer": "adam", "members": 3, "batch_size": 16, **_QUIET},
    "kfac-lbfgs": {"optimizer": "kfac-lbfgs", "ridge": [1e-3, 0.1], **_QUIET},
    "warm start": {"optimizer": "adam+kfac-lbfgs", "ridge": [1e-3, 0.1], "steps": 230, "every": 30},
    "stopped": {"optimizer": "kfac-lbfgs", "ridge": [1e-3, 1.0, 0.5], "gradient_norm": 0.2, **_QUIET},
    "diverged": {"optimizer": "gd", "lr": [1e4, 1e-2, 1e-3], "batch_size": 16, **_QUIET},
}


def dead(lease):
    """Make the holder of a lease one that is gone."""
    held = json.loads(lease.path.read_text())
    lease.path.write_text(json.dumps(held | {"started": "1"}))
