"""What every package uses: command lines, settings, files, processes, tables. Imports nothing else of this project."""
