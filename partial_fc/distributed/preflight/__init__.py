"""Can these hosts train together? Standard library only."""
