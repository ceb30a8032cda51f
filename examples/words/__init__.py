"""A set of over a hundred thousand real classes without images: Russian lexemes with their word forms."""
