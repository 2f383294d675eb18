"""Everything is in pyproject.toml; this file only says where jaxsr does not run."""

import sys

import setuptools

if sys.platform == "win32":
    sys.exit("jaxsr runs on Linux and macOS; on Windows install it in WSL")
setuptools.setup()
