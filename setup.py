"""Puts `conf/` into the wheel as `dvi/conf`, and README into its metadata as an index can show it.

The folder stays at the top of a checkout, where users edit it, so a build copies it.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
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


setup(
    cmdclass={"build_py": BuildWithConf},
    long_description=plain_readme(),
    long_description_content_type="text/markdown",
)
