# SPDX-License-Identifier: Apache-2.0
"""Planting a fault in text: kernel source, or the pack's own Python (design text, plan, packing, runner).

A plant edits a copy of the text and puts the copy in force for a while. The text to be replaced must occur exactly once,
so that a plant that no longer hits anything fails instead of proving nothing. No plant touches an array.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from kernels.designs.design import single_design_artifact
from kernels.stage import Stage
from pipeline import model_session
from tests.stand_ins.npu_tools import flattened

Edit = tuple[str, str]  # (text to be replaced, what replaces it)


def edited(text: str, *edits: Edit) -> str:
    """The text with every edit made; AssertionError unless the old text of each occurs exactly once."""
    for old, new in edits:
        found = text.count(old)
        assert found == 1, f"the text to be replaced occurs {found} times, expected once: {old!r}"
        text = text.replace(old, new)
    return text


@contextmanager
def planted_source(stage_module: ModuleType, *edits: Edit, folder: Path) -> Iterator[Path]:
    """Make the stage of `kernels.<name>.stage` use an edited copy of its C++ source, headers included, below `folder`.

    Yields:
        The copy. Its file name is the kernel's, so that object names differ by content alone.
    """
    stage = stage_of(stage_module)
    source = Path(stage_module.__file__).parent / f"{stage.name}.cc"
    copy = folder / "planted" / source.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(edited(flattened(source), *edits))
    assert "source" not in vars(stage), f"{stage.__name__} is planted already"
    stage.source = property(lambda self: copy)
    _forget()
    try:
        yield copy
    finally:
        del stage.source
        _forget()


def stage_of(module: ModuleType) -> type[Stage]:
    """The one stage that a module defines."""
    (stage,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Stage) and value.__module__ == module.__name__
    )
    return stage


@contextmanager
def planted_python(module: ModuleType, *edits: Edit) -> Iterator[None]:
    """Make a module of the pack behave as its edited source: classes and functions stay the same objects.

    Functions get the code of their edited selves, so that whoever imported them before runs the plant as well.
    """
    path = Path(module.__file__)
    twin = ModuleType(module.__name__)
    twin.__file__ = module.__file__
    # Decorators such as dataclass look their module up by name and find the original there.
    assert module.__name__ in sys.modules
    exec(compile(edited(path.read_text(), *edits), f"{path} (planted)", "exec"), vars(twin))
    planted = dict(_functions(vars(twin), module.__name__))
    changed = [
        (function, function.__code__, planted[name].__code__)
        for name, function in _functions(vars(module), module.__name__)
        if name in planted and _differ(function.__code__, planted[name].__code__)
    ]
    assert changed, f"the edit changes no function of {module.__name__}"
    try:
        for function, _, code in changed:
            function.__code__ = code
        _forget()
        yield
    finally:
        for function, code, _ in changed:
            function.__code__ = code
        _forget()


def _forget() -> None:
    """Forget what a process keeps by design alone, since sources do not change while it runs."""
    single_design_artifact.cache_clear()
    model_session._legal.cache_clear()


def _functions(namespace: dict[str, object], module: str, prefix: str = "") -> Iterator[tuple[str, FunctionType]]:
    """(qualified name, function) of everything that a module defines, methods and properties included."""
    for name, value in list(namespace.items()):
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, cached_property):
            value = value.func
        if isinstance(value, FunctionType) and value.__module__ == module:
            yield prefix + name, value
        elif isinstance(value, type) and value.__module__ == module and not prefix:
            yield from _functions(dict(vars(value)), module, f"{name}.")


def _differ(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do something else: bytes, constants (nested codes by their own) and names."""
    if (one.co_code, one.co_names, len(one.co_consts)) != (other.co_code, other.co_names, len(other.co_consts)):
        return True
    return any(
        _differ(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a != b
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )
