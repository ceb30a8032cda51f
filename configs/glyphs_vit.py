"""500 characters, a small vision transformer, AdamW."""

from configs.sets import glyphs

config = glyphs("vit_mini", optimizer="adamw", lr=0.001, weight_decay=0.1, num_epoch=8)
config.published = {"unseen_characters": (90.0, 6.0), "unseen_typefaces": (88.2, 6.0)}
