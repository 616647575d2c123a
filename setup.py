"""Puts ``conf/`` into the wheel as ``dml/conf``; all else about the package stands in pyproject.toml."""

from pathlib import Path
from shutil import copytree, rmtree

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigurations(build_py):
    """Builds the package with the configurations in it; an editable install finds them in the checkout."""

    def run(self) -> None:
        """Copies the modules, then the configurations."""
        packaged = Path(self.build_lib, "dml")
        if not self.editable_mode:
            rmtree(packaged, ignore_errors=True)  # an earlier build may have left files that the project has no more
        super().run()
        if not self.editable_mode:
            copytree("conf", packaged / "conf")


setup(cmdclass={"build_py": BuildWithConfigurations})
