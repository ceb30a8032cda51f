"""RecordIO files: format, index, headers, and reading many records at once."""
