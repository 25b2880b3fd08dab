"""Code of others that brings schedules, passes, clusters and the rest, and the registries that it
adds to.

An installed package says so with an entry point of the group `ratrain.plugins`: a module, which
declares when it is imported, or a function without arguments, which declares when it is called
(docs/how-to/plugins.md). They are loaded once per process, at the first use of a name that RATrain
does not know itself, and whenever names are listed: what is built in works, and stays quick,
whatever else is installed.

Modules that are not installed (docs/how-to/extending.md) are named in the environment, which every
process of a run inherits, and are imported before anything else. A job file cannot name them: a
file that somebody is given must not choose what code runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ratrain.errors import PluginError, ProgramError, RatrainError, SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ratrain.plugins"
EXTENSIONS = "RATRAIN_EXTENSIONS"
"""The environment's variable: names of modules, with commas between them."""
T = TypeVar("T")


class Registry(Mapping[str, T]):
    """What has a name, with what plugins add. `noun` names one of them in messages."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._known: dict[str, T] = {}

    def declare(self, name: str, value: T) -> None:
        """Makes it known; a name can be declared once, or the same again."""
        if self._known.get(name, value) != value:
            raise ProgramError(
                f"the {self._noun} {name} is declared twice", fix="choose another name"
            )
        self._known[name] = value

    @property
    def declared(self) -> tuple[T, ...]:
        """All that is known by now, without asking plugins for more."""
        return tuple(self._known.values())

    def __delitem__(self, name: str) -> None:
        """Takes a declaration back: for tests, which must leave none behind."""
        del self._known[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            load_plugins()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._known:
            load_plugins()
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(tuple(self._known))

    def __len__(self) -> int:
        load_plugins()
        return len(self._known)


class _Loading:
    """Whether plugins were loaded, and what went wrong then."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.begun = False
        self.failure: PluginError | None = None


_LOADING = _Loading()


def load_extensions() -> None:
    """Imports the modules that the environment names; each declares what it adds, once."""
    for name in filter(None, map(str.strip, os.environ.get(EXTENSIONS, "").split(","))):
        if not all(part.isidentifier() for part in name.split(".")):
            raise SpecError(
                f"{name!r} is not a module name",
                place=EXTENSIONS,
                fix="write names as in `import`, with commas between them",
            )
        fix = f"correct it, or take {name} out of {EXTENSIONS}"
        try:
            _declare(lambda name=name: import_module(name), f"the module {name!r}", EXTENSIONS, fix)
        except PluginError as error:
            if not isinstance(missing := error.__cause__, ModuleNotFoundError):
                raise
            raise SpecError(
                f"no module {missing.name!r}",
                place=EXTENSIONS,
                fix="install it, or put its folder on PYTHONPATH",
            ) from missing


def named(word: str) -> Any:
    """What a declaration names by "module:name"."""
    module, _, name = word.partition(":")
    return getattr(import_module(module), name)


def load_plugins() -> None:
    """Loads all plugins, unless that was done. One that cannot be loaded is a `PluginError` which
    names its package, now and whenever plugins are asked for again."""
    with _LOADING.lock:
        if not _LOADING.begun:
            _LOADING.begun = True  # first: a plugin may itself look into a registry
            for entry in _entry_points():
                try:
                    _load(entry)
                except PluginError as error:
                    _LOADING.failure = _LOADING.failure or error
    if _LOADING.failure is not None:
        raise _LOADING.failure.with_traceback(None)


def _entry_points() -> list[EntryPoint]:
    """In the order of their packages' names, so that it is the same in every process."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda entry: (_package(entry), entry.name))


def _load(entry: EntryPoint) -> None:
    def load() -> None:
        loaded = entry.load()
        if callable(loaded):
            loaded()
        elif not isinstance(loaded, ModuleType):
            raise TypeError(f"{entry.value} is neither a module nor a function")

    package = _package(entry)
    _declare(
        load,
        f"the plugin {entry.name!r} ({entry.value})",
        f"package {package}",
        f"fix or update {package.partition(' ')[0]}, or uninstall it",
    )


def _declare(load: Callable[[], object], subject: str, place: str, fix: str) -> None:
    """Runs code of others. Whatever goes wrong in it is one `PluginError`, which names the line."""
    try:
        load()
    except (Exception, SystemExit) as error:
        what = f"{subject} cannot be loaded: {_reason(error)}"
        raise PluginError(what, place=place, fix=fix) from error


def _reason(error: BaseException) -> str:
    """What an error says, and where in the code of others it was raised."""
    if isinstance(error, RatrainError):
        return f"{error.place}: {error.what}" if error.place else error.what
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # its text names file and line
        return reason
    *_, (name, line, _, _) = extract_tb(error.__traceback__)
    return reason if name.startswith("<") else f"{reason} ({Path(name).name}, line {line})"


def _package(entry: EntryPoint) -> str:
    """The name and version of the package that brings it."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "?"
