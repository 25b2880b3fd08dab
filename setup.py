"""Compiles the transport's hot modules as they are, with mypyc; the C parts: pyproject.toml.

Optional, as those are: without mypyc, a C compiler or Python's headers the very same modules are
interpreted. An editable install leaves them interpreted too: compiling takes most of a minute, and
training does not use the transport. `setup.py build_ext --inplace` compiles them (`make test` does
so); what is compiled must be rebuilt after a change, and the tests refuse to run on a stale build
(tests/conftest.py).
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
OPTIONS = ["--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary"]
GROUP = "ratrain_transport"


def hot_modules() -> list[str]:
    """The modules that pyproject.toml names."""
    with (HERE / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["ratrain"]["compiled-modules"]


class BuildExt(build_ext):
    """Adds the compiled modules; when the library they share fails, leaves all of them out."""

    failed = False

    def finalize_options(self) -> None:
        if not self.editable_mode and not any(
            GROUP in e.name for e in self.distribution.ext_modules
        ):
            self.distribution.ext_modules += self.compiled()
        super().finalize_options()

    def compiled(self) -> list[Extension]:
        try:
            from mypyc.build import mypycify
        except ImportError as error:
            self.warn(f"the transport stays interpreted: {error}")
            return []
        try:
            made = mypycify(
                [*OPTIONS, *hot_modules()],
                group_name=GROUP,
                opt_level="3",
                debug_level="0",
                target_dir="build/mypyc",
            )
        except SystemExit:  # how mypyc gives up, e.g. another mypy than the lock file's objects
            self.warn("the transport stays interpreted: mypyc refuses it (see above)")
            return []
        for extension in made:
            extension.optional = True
            extension.of_transport = True
        return sorted(made, key=lambda e: "__mypyc" not in e.name)  # the shared library first

    def build_extension(self, ext: Extension) -> None:
        of_transport = getattr(ext, "of_transport", False)
        if of_transport and self.failed:
            return
        try:
            super().build_extension(ext)
        except Exception:
            self.failed = self.failed or of_transport
            raise


setup(cmdclass={"build_ext": BuildExt})
