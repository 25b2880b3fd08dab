"""How the wheel is built: C parts that any Python can load, and on request the transport's hot
modules compiled as they stand by mypyc. Which ones: pyproject.toml.

Both are optional: without a compiler the Python twins, and the very same modules interpreted, are
used. The C parts are loaded with ctypes and know nothing of Python, so the wheel carries the tag
py3-none-PLATFORM and is built in seconds. mypyc takes most of a minute and binds the wheel to one
Python; training does not use the transport. It is asked for by

    RATRAIN_MYPYC=1 pip install .
    python setup.py build_ext --inplace     # in a checkout, as `make test` does

What is compiled must be rebuilt after a change, and the tests refuse to run on a stale build
(tests/conftest.py).
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
OPTIONS = ["--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary"]
GROUP = "ratrain_transport"
C_PARTS = ("_c", "_core")
ASKED = os.environ.get("RATRAIN_MYPYC", "") not in ("", "0")


def hot_modules() -> list[str]:
    """The modules that pyproject.toml names."""
    with (HERE / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["ratrain"]["compiled-modules"]


class BuildExt(build_ext):
    """Adds the compiled modules; when the library they share fails, leaves all of them out."""

    failed = False

    def finalize_options(self) -> None:
        asked = ASKED or (self.inplace and not self.editable_mode)
        if asked and not any(GROUP in e.name for e in self.distribution.ext_modules):
            self.distribution.ext_modules += self.compiled()
        super().finalize_options()

    def run(self) -> None:
        """Builds; without what an earlier build of a wheel left, perhaps for one Python alone."""
        if not self.inplace:
            for left in Path(self.build_lib).rglob("*.so"):
                left.unlink()
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        """C parts are plain libraries: no Python's version stands in their names."""
        name = super().get_ext_filename(fullname)
        if not fullname.rpartition(".")[2].endswith(C_PARTS):
            return name
        return f"{name.partition('.')[0]}{Path(name).suffix}"

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


class Wheel(bdist_wheel):
    """A wheel for any Python 3, unless a part of it was compiled for one."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if ASKED else ("py3", "none", platform)


setup(
    cmdclass={"build_ext": BuildExt, "bdist_wheel": Wheel},
    setup_requires=["mypy"] if ASKED else [],
)
