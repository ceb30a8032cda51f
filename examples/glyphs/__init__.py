"""A set of tens of thousands of classes: characters, drawn in the typefaces of Debian's packages."""
