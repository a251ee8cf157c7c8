"""Tie two separately built modules to one storage, buffers included."""

from torch import nn

from profforce.errors import UserError


def tie(src: nn.Module, dst: nn.Module) -> None:
    """Make ``dst`` use the parameters and buffers of ``src``, now and ever after.

    The tables that hold them are shared, not only the tensors: what later replaces a tensor in
    either module (an optimizer step, ``load_state_dict(assign=True)``, ``.to``) is seen by both,
    and a deepcopy of both together stays tied. For people who come from ``make_mirror``, which
    left buffers (random features, running statistics) behind.

    Raises:
        UserError: if the two do not have the same names and shapes.
    """
    sources, targets = dict(src.named_modules()), dict(dst.named_modules())
    _check(src, dst)
    for name, module in targets.items():
        if not module._parameters and not module._buffers:
            continue
        source = sources[name]
        module._parameters = source._parameters
        module._buffers = source._buffers
        module._non_persistent_buffers_set = source._non_persistent_buffers_set


def _check(src: nn.Module, dst: nn.Module) -> None:
    def table(module: nn.Module) -> dict[str, tuple[int, ...]]:
        tensors = [*module.named_parameters(remove_duplicate=False)]
        buffers = [*module.named_buffers(remove_duplicate=False)]
        return {name: tuple(value.shape) for name, value in [*tensors, *buffers]}

    source, target = table(src), table(dst)
    for name in sorted({*source, *target}):
        if source.get(name) != target.get(name):
            raise UserError(
                f"the modules differ at '{name}'",
                where="tie",
                got=f"{target.get(name, 'nothing')} in dst",
                expected=f"{source.get(name, 'nothing')} as in src",
                remedy="build both with the same layers and sizes",
            )
