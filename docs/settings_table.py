"""Writes the tables of configuration.md from the declarations of partial_fc/settings:  python docs/settings_table.py

A test compares them with what is there.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import default  # noqa: E402
from partial_fc.settings import presets  # noqa: E402
from partial_fc.utils.config import Setting  # noqa: E402

PAGE = DOCS / "configuration.md"
TRAINERS = {"mxnet": "MXNet", "torch": "PyTorch"}
PARTS = re.compile(r"(<!-- (settings|presets): .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_tables() -> str:
    """Returns a table for each group of settings."""
    lines: list[str] = []
    for row in default.SETTINGS.rows:
        if isinstance(row, Setting):
            lines.append(line_of(row, row.name))
            lines += [line_of(option, row.name, option.name) for option in row.options or ()]
        else:
            lines += ["", f"### {row}", "", "| setting | default | meaning |", "| --- | --- | --- |"]
    return "\n".join([*lines, "", ""])


def line_of(setting: Setting, *names: str) -> str:
    """Returns the row of a setting, or of an option of one."""
    also = "".join(f" or `{other}`" for other in default.SETTINGS.aliases_of(*names))
    only = f" ({TRAINERS[setting.trainer]})" if setting.trainer else ""
    return f"| `{'='.join(names)}`{also}{only} | {default_of(setting)} | {meaning_of(setting)} |"


def default_of(setting: Setting) -> str:
    """Returns the default, and PyTorch's where it is another one."""
    other = presets.TRAINERS["torch"].defaults.get(setting.name)
    return code(setting.default) + ("" if other is None else f"; PyTorch {code(other)}")


def meaning_of(setting: Setting) -> str:
    """Returns the help, the bounds and the choices."""
    choices = ", ".join(code(choice) for choice in setting.choices if choice)
    return "; ".join(filter(None, [setting.help, setting.bounds, choices])).replace("|", "\\|")


def code(value: object) -> str:
    """Returns a value as code; nothing for empty text."""
    return f"`{value if isinstance(value, str) else repr(value)}`" if value != "" else ""


def preset_tables() -> str:
    """Returns what each data set sets, in each trainer where they differ."""
    lines = ["", "| `--dataset` | sets |", "| --- | --- |"]
    for name, values in default.dataset.items():
        other = presets.TRAINERS["torch"].dataset.get(name)
        both = {"": values} if other is None else {" (MXNet)": values, " (PyTorch), where it differs": other}
        lines += [f"| `{name}`{label} | {assignments(sets)} |" for label, sets in both.items()]
    return "\n".join([*lines, "", ""])


def assignments(values: dict) -> str:
    """Returns settings as they are written on the command line."""
    return ", ".join(f"`{name}={value}`" for name, value in values.items())


def page(text: str) -> str:
    """Returns the text of the page with new tables."""
    tables = {"settings": settings_tables, "presets": preset_tables}
    return PARTS.sub(lambda part: part[1] + tables[part[2]]() + part[3], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
