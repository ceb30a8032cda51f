"""What is said in two places is the same: of the package, and docs/configuration.md and default.py of the settings."""

import pytest
import settings_table
import yaml
from packaging.requirements import Requirement

from partial_fc import __version__
from paths import ROOT

tomllib = pytest.importorskip("tomllib")  # Python 3.11


def test_requirement_txt_lists_what_the_extra_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["dependencies"] + project["optional-dependencies"]["torch"]
    lines = [line.partition("#")[0].strip() for line in (ROOT / "requirement.txt").read_text().splitlines()]
    assert set(map(Requirement, filter(None, lines))) == set(map(Requirement, extra))


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    newest = next(
        line
        for line in (ROOT / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## [") and "Unreleased" not in line
    )
    assert newest.startswith(f"## [{__version__}]")


def test_the_tables_of_the_settings_are_those_of_the_declarations():
    text = settings_table.PAGE.read_text(encoding="utf-8")
    assert settings_table.page(text) == text, "run: python docs/settings_table.py"
    assert "`step_timeout`" in text and "`glint360k_16GPU`" in text
