"""How modules are heard: by hooks of their own, by one of the whole process, or by a call around a compiled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from nndiff.recording.capture.plan import Plan

try:
    from torch.compiler import is_compiling
except ImportError:  # before torch 2.3
    from torch._utils import is_compiling

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


class Attachment:
    """Call `before` and `after` around every call of the planned modules until detached."""

    def __init__(self, plan: Plan, before: Before, after: After) -> None:
        self._plan = plan
        self._before = before
        self._after = after
        self._outside = frozenset(module for _, module in plan.outside)
        self._handles: list[RemovableHandle] = []
        self._compiled: list[tuple[torch.nn.Module, Any]] = []  # what was called where we now call around it

    def attach(self) -> None:
        """Begin to listen, to all modules or to none."""
        try:
            for _, module in self._plan.hooked:
                self._hook(module)
            if self._outside:
                self._handles.append(modules.register_module_forward_hook(_uncompiled(self._after_any)))
            for _, module in self._plan.replaced:
                original: Any = module._compiled_call_impl
                module._compiled_call_impl = self._around(module, original)
                self._compiled.append((module, original))
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Remove every trace."""
        for handle in self._handles:
            handle.remove()
        for module, original in self._compiled:
            module._compiled_call_impl = original
        self._handles.clear()
        self._compiled.clear()

    def _hook(self, module: torch.nn.Module) -> None:
        # called through the base class: TorchScript modules hide the methods but honour the hooks
        before, after = torch.nn.Module.register_forward_pre_hook, torch.nn.Module.register_forward_hook
        self._handles.append(before(module, _uncompiled(self._before), with_kwargs=True))
        self._handles.append(after(module, _uncompiled(self._after), with_kwargs=True))

    def _after_any(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Hear a call that is over: where a hook before it would make it another call."""
        if module in self._outside:
            self._before(module, (), {})
            self._after(module, args, {}, output)

    def _around(self, module: torch.nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return what records a call that was compiled together with its hooks, where hooks would go unheard."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before(module, args, kwargs)
            output = compiled(*args, **kwargs)
            self._after(module, args, kwargs, output)
            return output

        return call


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that does nothing where it is compiled along: it would tear the model's graph, and stay in it."""

    def heard(*args: Any) -> None:
        if not is_compiling():
            hook(*args)

    return heard
