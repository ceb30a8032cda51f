"""docs/configuration.md has the settings as default.py declares them."""

import settings_table


def test_the_tables_are_those_of_the_declarations():
    text = settings_table.PAGE.read_text(encoding="utf-8")
    assert settings_table.page(text) == text, "run: python docs/settings_table.py"
    assert "`step_timeout`" in text and "`glint360k_16GPU`" in text
