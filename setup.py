"""Puts ``conf/`` into the wheel as ``dml/conf``; all else about the package stands in pyproject.toml."""

from pathlib import Path
from shutil import copytree, rmtree

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigurations(build_py):
    """Builds the package with the configurations in it; an editable install finds them in the checkout."""

    def run(self) -> None:
        """Copies the modules, then the configurations."""
        super().run()
        if not self.editable_mode:
            packaged = Path(self.build_lib, "dml", "conf")
            rmtree(packaged, ignore_errors=True)  # an earlier build may have left files that conf/ has no more
            copytree("conf", packaged)


setup(cmdclass={"build_py": BuildWithConfigurations})
