"""Puts `conf/` into the wheel as `dvi/conf`; all other metadata is in pyproject.toml.

The folder stays at the top of a checkout, where users edit it, so a build copies it.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """build_py that copies `conf/` next to the modules of `dvi`, except in editable installs."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "dvi" / "conf"
            shutil.copytree("conf", target, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConf})
