"""Of all tests: with any umask, the folders that a test makes are like those of a command."""

from partial_fc.utils.shared_folders import keep_from_others

keep_from_others()
