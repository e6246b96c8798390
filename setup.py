"""Puts `conf/` into the wheel as `dvi/conf`, and README into its metadata as an index can show it;
compiles the kernels of `dvi/native` where there is a C compiler.

The folder stays at the top of a checkout, where users edit it, so a build copies it.
"""

import platform
import re
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


def plain_readme() -> str:
    """README without pictures, and pages by name: what they point to is no part of a wheel."""
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"^!\[.*\]\(.*\)\n\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!https://)[^)]+\)", r"\1", text)


class BuildWithConf(build_py):
    """build_py that copies `conf/` next to the modules of `dvi`, except in editable installs."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "dvi" / "conf"
            shutil.copytree("conf", target, dirs_exist_ok=True)


def kernels() -> list[Extension]:
    """None for processors that they are not written for. A build that fails is a warning.

    OpenMP is not linked: its functions are those of torch, so that both share one pool of threads.
    """
    folder = Path("dvi/native")
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return []
    features = ("fma", "popcnt", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
    flags = [f"-m{name}" for name in (*features, "avx512vnni")]
    flags += ["-O3", "-fopenmp", "-fno-math-errno", "-g0"]
    return [
        Extension(
            "dvi.native._kernels",
            [str(folder / name) for name in ("layer.c", "top.c")],
            depends=[str(path) for path in folder.glob("*.h")],
            extra_compile_args=flags,
            optional=True,
        )
    ]


setup(
    ext_modules=kernels(),
    cmdclass={"build_py": BuildWithConf},
    long_description=plain_readme(),
    long_description_content_type="text/markdown",
)
