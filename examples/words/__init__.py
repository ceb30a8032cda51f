"""A set with more than a hundred thousand real classes, without images: Russian lexemes with their word forms."""
