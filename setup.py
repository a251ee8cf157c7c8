"""Builds the C++ kernel into wheels and editable installs where a compiler is at hand.

All else is in pyproject.toml. Without a compiler the package is pure Python: the kernel is then
compiled at first use, or chunked PyTorch takes its place.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("profforce", "kernels")


def _load_build() -> ModuleType:
    """profforce/kernels/build.py, without the package and its dependencies around it."""
    spec = importlib.util.spec_from_file_location("profforce_build", KERNELS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build = _load_build()


class BuildKernels(build_ext):
    """Compiles every variant; the libraries are loaded by ctypes and know nothing of Python."""

    def run(self) -> None:
        """A variant that cannot be compiled is left out, and said so."""
        folder = KERNELS if self.inplace or self.editable_mode else self._built()
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda variant: self._compile(variant, folder), build.variants()))

    def _compile(self, variant: object, folder: Path) -> None:
        try:
            build.compile_variant(variant, folder / build.library_name(variant))
        except build.NoKernelError as err:
            self.warn(f"{build.library_name(variant)} is not built: {err}")

    def _built(self) -> Path:
        return Path(self.build_lib) / KERNELS

    def get_outputs(self) -> list[str]:
        """Every library, where it would be put."""
        return [str(self._built() / build.library_name(v)) for v in build.variants()]

    def get_output_mapping(self) -> Mapping[str, str]:
        """From the place in a wheel to the place in the source tree."""
        if not (self.inplace or self.editable_mode):
            return {}
        return {out: str(KERNELS / Path(out).name) for out in self.get_outputs()}


class AnyPythonWheel(bdist_wheel):
    """Bound to a platform, not to a version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none-PLATFORM``."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


sources = [str(KERNELS / part) for part in build.PARTS if part.endswith(".cpp")]
extension = Extension("profforce.kernels.causal_linear", sources)
setup(
    ext_modules=[extension] if build.find_compiler() else [],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel},
)
