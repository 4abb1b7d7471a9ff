"""Callbacks around the calls of modules: by forward hooks, by one global hook, or by wrapping a compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from nndiff.recording.capture.plan import Plan

try:
    from torch.compiler import is_compiling
except ImportError:  # before torch 2.3
    from torch._utils import is_compiling

# Either may return something to go on instead: arguments and keywords, or an output; None leaves all as it is.
BeforeCall = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]
AfterCall = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


class CallHooks:
    """Run `before_call` and `after_call` around every call of the planned modules, until removed."""

    def __init__(self, plan: Plan, before_call: BeforeCall, after_call: AfterCall) -> None:
        self._plan = plan
        self._before_call = before_call
        self._after_call = after_call
        self._global_modules = frozenset(module for _, module in plan.global_hooked)
        self._handles: list[RemovableHandle] = []
        self._compiled_calls: list[tuple[torch.nn.Module, Any]] = []  # what the wrappers replaced

    def install(self) -> None:
        """Install the hooks of all modules, or none if one fails."""
        try:
            for _, module in self._plan.hooked:
                # through the base class: TorchScript modules hide these methods but run the hooks
                before = torch.nn.Module.register_forward_pre_hook
                after = torch.nn.Module.register_forward_hook
                self._handles.append(before(module, _skip_while_compiling(self._before_call), with_kwargs=True))
                self._handles.append(after(module, _skip_while_compiling(self._after_call), with_kwargs=True))
            if self._global_modules:
                hook = _skip_while_compiling(self._after_any_call)
                self._handles.append(torch_modules.register_module_forward_hook(hook))
            for _, module in self._plan.wrapped:
                original: Any = module._compiled_call_impl
                module._compiled_call_impl = self._wrap_compiled_call(module, original)
                self._compiled_calls.append((module, original))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove every hook and wrapper."""
        for handle in self._handles:
            handle.remove()
        for module, original in self._compiled_calls:
            module._compiled_call_impl = original
        self._handles.clear()
        self._compiled_calls.clear()

    def _after_any_call(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Report a call once it is over: a hook before it would change how the module runs."""
        if module not in self._global_modules:
            return None
        self._before_call(module, (), {})
        return self._after_call(module, args, {}, output)

    def _wrap_compiled_call(self, module: torch.nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that reports itself: hooks would be compiled along and never run."""

        def call_and_report(*args: Any, **kwargs: Any) -> Any:
            other_arguments = self._before_call(module, args, kwargs)
            if other_arguments is not None:
                args, kwargs = other_arguments
            output = compiled(*args, **kwargs)
            other_output = self._after_call(module, args, kwargs, output)
            return output if other_output is None else other_output

        return call_and_report


def _skip_while_compiling(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does nothing when torch.compile traces it: it would break the graph, and stay in it."""

    def run_hook(*args: Any) -> Any:
        return None if is_compiling() else hook(*args)

    return run_hook
